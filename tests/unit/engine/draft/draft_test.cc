#include "engine/draft/draft.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

/// A different tokenizer with the same words: text may be handed over, ids may not.
class OtherTokenizer final : public Tokenizer {
 public:
  explicit OtherTokenizer(std::shared_ptr<const Tokenizer> inner)
      : inner_(std::move(inner)), digest_(inner_->digest()) {
    digest_[0] ^= 1;
  }
  std::vector<std::int32_t> encode(std::string_view text, Special special,
                                   Start start) const override {
    return inner_->encode(text, special, start);
  }
  Encoding encode_with_offsets(std::string_view text, Special special, Start start) const override {
    return inner_->encode_with_offsets(text, special, start);
  }
  std::string_view token_bytes(std::int32_t id) const override { return inner_->token_bytes(id); }
  bool is_special(std::int32_t id) const override { return inner_->is_special(id); }
  std::optional<std::int32_t> token_id(std::string_view piece) const override {
    return inner_->token_id(piece);
  }
  std::int32_t vocab_size() const override { return inner_->vocab_size(); }
  std::optional<std::int32_t> bos_id() const override { return inner_->bos_id(); }
  const std::vector<std::int32_t>& eos_ids() const override { return inner_->eos_ids(); }
  bool add_bos() const override { return inner_->add_bos(); }
  bool strips_first_space() const override { return inner_->strips_first_space(); }
  bool space_after_special() const override { return inner_->space_after_special(); }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::string_view description() const override { return "other"; }

 private:
  std::shared_ptr<const Tokenizer> inner_;
  std::array<std::uint8_t, 32> digest_;
};

class DraftTest : public ::testing::Test {
 protected:
  DraftTest() : tokenizer_(std::move(*load_tokenizer(model_.path()))) {}

  std::unique_ptr<Draft> load(std::shared_ptr<const Tokenizer> target, const fs::path& path,
                              std::int32_t max_queue = 8) {
    DraftOptions options;
    options.path = path.string();
    options.model.weights = WeightFormat::kF32;
    options.max_queue = max_queue;
    options.chunk_tokens = 48;
    auto draft = load_draft(options, std::move(target));
    if (!draft.ok()) {
      ADD_FAILURE() << draft.status().to_string();
      std::abort();
    }
    return std::move(*draft);
  }
  static std::shared_ptr<LookAhead> ask_and_wait(Draft& draft, std::vector<std::int32_t> prompt,
                                                 std::int32_t max_tokens) {
    std::promise<void> done;
    auto answer = draft.ask({std::move(prompt), max_tokens, [&done] { done.set_value(); }});
    done.get_future().wait();
    EXPECT_TRUE(answer->done());
    return answer;
  }

  RandomModelFolder model_;
  std::shared_ptr<const Tokenizer> tokenizer_;  // tokenizer of model_
  std::mt19937 rng_{31};
};

TEST_F(DraftTest, TheTargetAsItsOwnDraftWritesTheAnswer) {
  TempFolder folder;
  auto store = open_test_store(folder.path() / "store");
  auto engine = make_test_engine(model_.path(), *store);
  auto draft = load(tokenizer_, model_.path());
  for (const std::size_t n : {1u, 47u, 130u}) {
    QueryRequest request = make_request(*engine, {}, random_ids(rng_, n), "recompute");
    std::vector<std::int32_t> prompt = request.prefix_ids;
    prompt.insert(prompt.end(), request.suffix_ids.begin(), request.suffix_ids.end());
    const auto ahead = ask_and_wait(*draft, prompt, request.sampling.max_tokens);
    const Outcome answer = run_query(*engine, std::move(request));
    ASSERT_TRUE(answer.status.ok());
    const std::vector<std::int32_t> same(
        answer.ids.begin(),
        answer.ids.begin() + static_cast<std::ptrdiff_t>(ahead->token_ids().size()));
    EXPECT_EQ(ahead->token_ids(), same);
    // It may be shorter only if it ended.
    if (ahead->token_ids().size() < answer.ids.size()) {
      const auto& ends = tokenizer_->eos_ids();
      EXPECT_NE(std::find(ends.begin(), ends.end(), ahead->token_ids().back()), ends.end());
    }
    EXPECT_EQ(ahead->reason(), "");
  }
  engine->stop(std::chrono::milliseconds(0));
}

TEST_F(DraftTest, AnotherTokenizerIsReachedThroughText) {
  const std::shared_ptr<const Tokenizer> own(std::move(*load_tokenizer(demo_model())));
  const std::vector<std::int32_t> prompt = own->encode(
      "The mayor of the city was born in another town.");
  std::vector<std::int32_t> with_bos = prompt;
  if (own->add_bos()) with_bos.insert(with_bos.begin(), *own->bos_id());
  auto direct = load(own, demo_model()),
       by_text = load(std::make_shared<OtherTokenizer>(own), demo_model());
  const auto expected = ask_and_wait(*direct, with_bos, 8);
  const auto actual = ask_and_wait(*by_text, prompt, 8);
  ASSERT_FALSE(expected->token_ids().empty());
  EXPECT_EQ(actual->token_ids(),
            own->encode(own->decode(expected->token_ids()), Special::kNone, Start::kMiddle));
}

TEST_F(DraftTest, APromptBeyondItsWindowHasNoLookAhead) {
  const RandomModelFolder small(7, 64);
  auto draft = load(tokenizer_, small.path());
  const auto none = ask_and_wait(*draft, random_ids(rng_, 60), 5);
  EXPECT_TRUE(none->token_ids().empty());
  EXPECT_NE(none->reason().find("64"), std::string::npos) << none->reason();
  EXPECT_FALSE(ask_and_wait(*draft, random_ids(rng_, 59), 5)->token_ids().empty());
  EXPECT_FALSE(ask_and_wait(*draft, {}, 5)->reason().empty());
}

TEST_F(DraftTest, AnAnswerIsWrittenFromWhatIsKeptOfThePrompt) {
  auto draft = load(tokenizer_, model_.path());
  const std::vector<std::int32_t> prompt = random_ids(rng_, 200);
  const auto ask = [&](Draft& d, const std::vector<std::int32_t>& ids, std::vector<RowRange> kept) {
    std::promise<void> done;
    DraftRequest r{ids, 6, [&done] { done.set_value(); }};
    r.kept = std::move(kept);
    auto answer = d.ask(std::move(r));
    done.get_future().wait();
    return answer;
  };
  const auto whole = ask(*draft, prompt, {});
  EXPECT_EQ(ask(*draft, prompt, {{0, 77}, {77, 200}})->token_ids(), whole->token_ids());
  // The kept ranges need a separate reading, which is not shared with that of the whole prompt.
  const std::vector<RowRange> kept = {{0, 10}, {50, 81}, {190, 200}};
  const auto part = ask(*draft, prompt, kept), same = ask(*draft, prompt, kept);
  EXPECT_EQ(part, same);
  EXPECT_NE(part, whole);
  EXPECT_FALSE(part->token_ids().empty());
  // If the window is shorter than the prompt, the kept tokens move together and are the prompt.
  const RandomModelFolder small(7, 64);
  auto narrow = load(tokenizer_, small.path());
  std::vector<std::int32_t> short_prompt;
  for (const RowRange& s : kept)
    short_prompt.insert(short_prompt.end(), prompt.begin() + s.begin, prompt.begin() + s.end);
  const auto moved = ask(*narrow, prompt, kept);
  EXPECT_EQ(moved->reason(), "");
  EXPECT_EQ(moved->token_ids(), ask(*narrow, short_prompt, {})->token_ids());
  EXPECT_NE(ask(*narrow, prompt, {{0, 10}, {50, 101}})->reason().find("61"), std::string::npos);
}

TEST_F(DraftTest, AnotherTokenizerKeepsWhatSharesItsText) {
  const std::shared_ptr<const Tokenizer> own(std::move(*load_tokenizer(demo_model())));
  const std::vector<std::int32_t> prompt = own->encode(
      "The mayor of the city was born in another town.");
  const auto end = static_cast<std::int64_t>(prompt.size());
  auto by_text = load(std::make_shared<OtherTokenizer>(own), demo_model()),
       direct = load(own, demo_model());
  const auto ask = [&](Draft& d, std::vector<std::int32_t> ids, std::vector<RowRange> kept) {
    std::promise<void> done;
    DraftRequest r{std::move(ids), 6, [&done] { done.set_value(); }};
    r.kept = std::move(kept);
    auto answer = d.ask(std::move(r));
    done.get_future().wait();
    EXPECT_EQ(answer->reason(), "");
    return answer->token_ids();
  };
  std::vector<std::int32_t> with_bos = prompt;
  const std::int64_t bos = own->add_bos() ? 1 : 0;
  if (bos > 0) with_bos.insert(with_bos.begin(), *own->bos_id());
  // The text begins with the draft's BOS, which corresponds to no token of the target.
  const auto expected = ask(*direct, with_bos, {{0, bos + 3}, {bos + end - 4, bos + end}});
  EXPECT_EQ(ask(*by_text, prompt, {{0, 3}, {end - 4, end}}),
            own->encode(own->decode(expected), Special::kNone, Start::kMiddle));
}

TEST_F(DraftTest, AFullQueueHasNoLookAheadAndEveryAskIsAnsweredOnce) {
  auto draft = load(tokenizer_, model_.path(), /*max_queue=*/1);
  // The first request is done but still held. The second therefore stays in the queue, and the
  // third finds it full.
  Gate gate;
  std::promise<void> held, second_done;
  std::atomic<int> calls{0};
  auto first = draft->ask({random_ids(rng_, 5), 2, [&] {
                             calls.fetch_add(1);
                             held.set_value();
                             gate.pass();
                           }});
  held.get_future().wait();
  auto second = draft->ask({random_ids(rng_, 5), 2, [&] {
                              calls.fetch_add(1);
                              second_done.set_value();
                            }});
  auto third = draft->ask({random_ids(rng_, 5), 2, [&] { calls.fetch_add(1); }});
  EXPECT_TRUE(third->done());
  EXPECT_NE(third->reason().find("full"), std::string::npos);
  EXPECT_EQ(calls.load(), 2);
  gate.open();
  second_done.get_future().wait();
  EXPECT_FALSE(second->token_ids().empty());
  EXPECT_FALSE(first->token_ids().empty());
  EXPECT_EQ(calls.load(), 3);
}

TEST_F(DraftTest, AsksForTheSameShareOneReadingAsLongAsSomebodyWantsIt) {
  auto draft = load(tokenizer_, model_.path());
  Gate gate;
  std::promise<void> held;
  std::atomic<int> calls{0};
  auto first = draft->ask({random_ids(rng_, 5), 2, [&] {
                             held.set_value();
                             gate.pass();
                           }});
  held.get_future().wait();
  const std::vector<std::int32_t> prompt = random_ids(rng_, 90);
  const auto request = [&](const std::string& scope) {
    DraftRequest r{prompt, 6, [&calls] { calls.fetch_add(1); }};
    r.tenant = scope;
    return r;
  };
  auto one = draft->ask(request("a")), two = draft->ask(request("a")),
       stranger = draft->ask(request("b"));
  DraftRequest longer = request("a");
  longer.max_tokens = 7;
  auto other = draft->ask(longer);
  EXPECT_EQ(one, two);
  EXPECT_NE(one, stranger);
  EXPECT_NE(one, other);
  one->cancel();
  EXPECT_FALSE(one->cancelled());
  two->cancel();
  EXPECT_TRUE(one->cancelled());
  // All callers cancelled, so the next one gets a new request.
  auto fresh = draft->ask(request("a"));
  EXPECT_NE(fresh, one);
  gate.open();
  while (!fresh->done() || !stranger->done()) std::this_thread::yield();
  EXPECT_TRUE(one->done());
  EXPECT_TRUE(one->token_ids().empty());
  ASSERT_FALSE(fresh->token_ids().empty());
  EXPECT_EQ(fresh->token_ids(), stranger->token_ids());
  // A request that is done and still held is known at once.
  auto late = draft->ask(request("a"));
  EXPECT_EQ(late, fresh);
  draft->stop();
  // They are one, two, stranger, other, fresh and late.
  EXPECT_EQ(calls.load(), 6);
}

TEST_F(DraftTest, ScoresArePaidToEveryTokenOfThePrompt) {
  auto draft = load(tokenizer_, model_.path());
  const std::vector<std::int32_t> prompt = random_ids(rng_, 150);
  std::promise<void> done;
  std::atomic<int> calls{0};
  DraftRequest request{prompt, 0, [&] {
                         if (calls.fetch_add(1) == 1) done.set_value();
                       }};
  request.score_window = 20;
  auto alone = draft->ask(request);
  done.get_future().wait();
  EXPECT_TRUE(alone->token_ids().empty());
  EXPECT_EQ(alone->reason(), "");
  ASSERT_EQ(alone->scores().size(), prompt.size());
  EXPECT_TRUE(std::all_of(alone->scores().begin(), alone->scores().end(),
                          [](float s) { return s >= 0 && s <= 1.001f; }));
  EXPECT_GT(*std::max_element(alone->scores().begin(), alone->scores().end()), 0);
}

TEST_F(DraftTest, StoppingAnswersWhoStillWaits) {
  auto draft = load(tokenizer_, model_.path());
  Gate gate;
  std::promise<void> held;
  auto first = draft->ask({random_ids(rng_, 5), 2, [&] {
                             held.set_value();
                             gate.pass();
                           }});
  held.get_future().wait();
  auto waiting = draft->ask({random_ids(rng_, 200), 64, {}}),
       unwanted = draft->ask({random_ids(rng_, 200), 64, {}});
  unwanted->cancel();
  std::thread stopper([&] { draft->stop(); });
  gate.open();
  stopper.join();
  EXPECT_TRUE(waiting->done());
  EXPECT_TRUE(unwanted->done());
  EXPECT_TRUE(unwanted->token_ids().empty());
  auto late = draft->ask({random_ids(rng_, 5), 2, {}});
  EXPECT_TRUE(late->done());
  EXPECT_TRUE(late->token_ids().empty());
}

TEST_F(DraftTest, AFolderWithoutAModelIsRefused) {
  TempFolder empty;
  DraftOptions options;
  options.path = empty.path().string();
  EXPECT_FALSE(load_draft(options, tokenizer_).ok());
}

TEST_F(DraftTest, ATokenizerWithMoreIdsThanItsModelIsRefused) {
  const RandomModelFolder folder(5);
  std::ifstream file(folder.path() / "config.json");
  std::string config((std::istreambuf_iterator<char>(file)), {});
  const std::string whole = "\"vocab_size\":4096";
  ASSERT_NE(config.find(whole), std::string::npos);
  write_file(folder.path() / "config.json",
             config.replace(config.find(whole), whole.size(), "\"vocab_size\":4000"));
  const auto parsed = load_model_config(folder.path());
  ASSERT_TRUE(parsed.ok());
  write_file(folder.path() / "model.safetensors", safetensors_bytes(llama_tensors(*parsed, 5)));
  DraftOptions options;
  options.path = folder.path().string();
  const auto draft = load_draft(options, tokenizer_);
  EXPECT_EQ(draft.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(draft.status().field(), "vocab_size");
}

}  // namespace
}  // namespace quire::testing
