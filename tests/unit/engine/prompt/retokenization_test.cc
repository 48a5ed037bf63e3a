/// Prompts are converted for a draft with another vocabulary.
#include "engine/prompt/retokenization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using ::testing::ElementsAre;

/// Makes a token of every `step` bytes of a text and remembers its bytes. Id 0 begins texts and has
/// no bytes.
class StepTokenizer final : public Tokenizer {
 public:
  StepTokenizer(std::size_t step, bool bos) : step_(step), bos_(bos) {}
  std::vector<std::int32_t> encode(std::string_view text, Special special,
                                   Start start) const override {
    return encode_with_offsets(text, special, start).ids;
  }
  Encoding encode_with_offsets(std::string_view text, Special, Start) const override {
    Encoding out;
    for (std::size_t at = 0; at < text.size(); at += step_) {
      const std::string_view piece = text.substr(at, step_);
      const auto [known, fresh] = ids_.try_emplace(std::string(piece),
                                                   static_cast<std::int32_t>(ids_.size()) + 1);
      if (fresh) pieces_[known->second] = piece;
      out.ids.push_back(known->second);
      out.spans.push_back(
          {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at + piece.size())});
    }
    return out;
  }
  std::string_view token_bytes(std::int32_t id) const override {
    return id == 0 ? std::string_view("<s>") : std::string_view(pieces_.at(id));
  }
  bool is_special(std::int32_t id) const override { return id == 0; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::int32_t vocab_size() const override { return 1 << 20; }
  std::optional<std::int32_t> bos_id() const override { return 0; }
  const std::vector<std::int32_t>& eos_ids() const override { return none_; }
  bool add_bos() const override { return bos_; }
  bool strips_first_space() const override { return false; }
  bool space_after_special() const override { return false; }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::string_view description() const override { return "steps"; }

 private:
  const std::size_t step_;
  const bool bos_;
  mutable std::map<std::string, std::int32_t> ids_;
  mutable std::map<std::int32_t, std::string> pieces_;
  const std::vector<std::int32_t> none_;
  const std::array<std::uint8_t, 32> digest_{};
};

TEST(Retokenization, ScoresComeBackToWhateverSharesAByte) {
  const StepTokenizer target(2, true), draft(3, true);
  std::vector<std::int32_t> ids = {0};
  // Tokens: ab cd ef gh
  for (const std::int32_t id : target.encode("abcdefgh", Special::kNone, Start::kText))
    ids.push_back(id);
  const Retokenization spelled(target, ids, draft);
  EXPECT_EQ(spelled.ids().size(), 4u);  // tokens: <s> abc def gh
  EXPECT_EQ(spelled.ids().front(), 0);
  const std::vector<float> scores = {9, 1, 3, 2};
  EXPECT_THAT(spelled.bring_back(scores), ElementsAre(0, 1, 3, 3, 2));
}

TEST(Retokenization, LongTokensOfTheTargetTakeTheBestOfTheirParts) {
  const StepTokenizer target(4, false), draft(1, false);
  const auto ids = target.encode("abcdefg", Special::kNone, Start::kText);
  const Retokenization spelled(target, ids, draft);
  EXPECT_EQ(spelled.ids().size(), 7u);
  const std::vector<float> scores = {1, 5, 2, 3, 0, 7, 4};
  EXPECT_THAT(spelled.bring_back(scores), ElementsAre(5, 7));
}

TEST(Retokenization, ControlTokensAloneStandForNothing) {
  const StepTokenizer target(4, false), draft(1, false);
  const std::vector<std::int32_t> ids = {0, 0};
  const Retokenization spelled(target, ids, draft);
  EXPECT_TRUE(spelled.ids().empty());
  EXPECT_THAT(spelled.bring_back({}), ElementsAre(0, 0));
}

std::vector<std::pair<std::int64_t, std::int64_t>> pairs(const std::vector<RowRange>& ranges) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (const RowRange& s : ranges) out.emplace_back(s.begin, s.end);
  return out;
}

TEST(Retokenization, StretchesGoOverToWhateverSharesAByte) {
  using ::testing::Pair;
  const StepTokenizer target(2, true), draft(3, true);
  std::vector<std::int32_t> ids = {0};
  // Tokens: ab cd ef gh ij kl
  for (const std::int32_t id : target.encode("abcdefghijkl", Special::kNone, Start::kText))
    ids.push_back(id);
  const Retokenization spelled(target, ids, draft);  // tokens: <s> abc def ghi jkl
  const auto over = [&](std::vector<RowRange> ranges) { return pairs(spelled.bring_over(ranges)); };
  EXPECT_THAT(over({{1, 2}}), ElementsAre(Pair(1, 2)));  // ab overlaps abc
  EXPECT_THAT(over({{2, 3}}), ElementsAre(Pair(1, 3)));  // cd overlaps abc and def
  EXPECT_THAT(over({{1, 2}, {4, 5}}), ElementsAre(Pair(1, 2), Pair(3, 4)));
  // Token abc overlaps both.
  EXPECT_THAT(over({{1, 2}, {2, 3}, {6, 7}}), ElementsAre(Pair(1, 3), Pair(4, 5)));
  EXPECT_THAT(over({{0, 1}}), ElementsAre());  // a control token
  EXPECT_THAT(over({{3, 3}}), ElementsAre());
  EXPECT_THAT(over({{0, 7}}), ElementsAre(Pair(1, 5)));
}

TEST(Retokenization, ADraftWithItsOwnTokenizerCutsPrompts) {
  TempFolder folder;
  const RandomModelFolder model, draft(11, 2048);
  // Different settings make it another tokenizer, to which ids may not be handed over.
  write_file(draft.path() / "tokenizer_config.json", R"({"add_bos_token":false})");
  auto store = open_test_store(folder.path() / "store");
  auto engine = make_test_engine(model.path(), *store,
                                 [&](EngineOptions& o) { o.draft_path = draft.path().string(); });
  const auto own = load_tokenizer(draft.path());
  ASSERT_TRUE(own.ok());
  ASSERT_NE((*own)->digest(), engine->tokenizer().digest());
  std::mt19937 rng(3);
  QueryRequest r = make_request(
      *engine, {}, engine->tokenizer().encode(engine->tokenizer().decode(random_ids(rng, 200))),
      "auto");
  r.cache.prompt_compression = "specpc";
  r.cache.prompt_options = PlugOptions({{"capacity", "80"}, {"window", "16"}});
  const Outcome o = run_query(*engine, std::move(r));
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.plan.prompt_cut->note, "");
  EXPECT_EQ(o.plan.prompt_cut->kept_tokens, 80);
  EXPECT_EQ(o.plan.fates.total(), o.plan.prompt_tokens);
  engine->stop(std::chrono::milliseconds(0));
}

}  // namespace
}  // namespace quire::testing
