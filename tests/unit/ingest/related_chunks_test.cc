// Documents that are read behind chunks of other documents: what they see, and what happens when
// that changes.
#include "ingest/document/related_chunks.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;
using Ids = std::vector<std::int32_t>;

class RelatedChunksTest : public IngestTest {
 protected:
  void SetUp() override {
    options_.find_chunks = [this](std::string_view, const std::string& text, std::size_t most) {
      const std::lock_guard lock(mu_);
      asked_.push_back(text);
      auto out = found_;
      if (out.size() > most) out.resize(most);
      return unavailable_-- > 0
                 ? Result<std::vector<FoundChunk>>(Status::unavailable("not complete"))
                 : Result<std::vector<FoundChunk>>(std::move(out));
    };
    open();
  }
  void find(std::vector<FoundChunk> found) {
    const std::lock_guard lock(mu_);
    found_ = std::move(found);
  }
  std::size_t asked() {
    const std::lock_guard lock(mu_);
    return asked_.size();
  }
  static BatchOptions behind(std::int32_t tokens) {
    BatchOptions o;
    o.chunking.related_tokens = tokens;
    return o;
  }
  std::string result(const JobSnapshot& job) {
    const JobItem& item = job.results.at(0);
    return std::string(item_result_name(item.result)) +
           (item.error ? " " + item.error->message : "");
  }
  Ids ids_of(const std::string& id) {
    Ids all;
    const auto document = store_->get_document("default", id);
    for (const auto& c : document->chunks)
      all.insert(all.end(), c.token_ids.begin(), c.token_ids.end());
    return all;
  }
  ResolvedDocument resolved(const std::string& id) {
    const std::vector<std::string> ids{id};
    auto out = service_->resolve("default", ids, {});
    EXPECT_OK(out);
    EXPECT_EQ(out->documents.size(), 1u);
    return out->documents.at(0);
  }
  /// Every chunk sees `before`, then what is before it in its document, and its key says so.
  void expect_behind(const std::string& id, const Ids& before) {
    const ResolvedDocument d = resolved(id);
    Ids chain = before;
    for (const QueryContext& c : d.contexts) {
      EXPECT_EQ(c.left_context, chain);
      EXPECT_EQ(*c.key, engine_->names().context_key(c.token_ids, "default", {}, chain));
      chain.insert(chain.end(), c.token_ids.begin(), c.token_ids.end());
    }
  }
  /// Waits until the document's KV is made anew.
  void wait_for_version(const std::string& id, std::uint64_t version) {
    for (int i = 0; i < 1000 && store_->get_document_head("default", id)->version < version; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(store_->get_document_head("default", id)->version, version);
  }

  std::mutex mu_;
  std::vector<FoundChunk> found_;
  std::vector<std::string> asked_;
  int unavailable_ = 0;
};

TEST_F(RelatedChunksTest, EveryChunkIsReadBehindWhatIsFound) {
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", "A mill stands at the lake.")));
  find({{"b", 0}, {"c", 0}, {"a", 0}, {"nowhere", 0}, {"a", 7}});
  BatchOptions options = behind(4000);
  options.chunking.max_tokens = 64;
  const JobSnapshot job = put(one(doc("c", prose(100, 1), "", "Lakes")), options);
  EXPECT_EQ(result(job), "created");
  EXPECT_TRUE(asked_.at(0).starts_with("Lakes\n" + prose(100, 1).substr(0, 100)));
  Ids before = ids_of("a");
  const Ids best = ids_of("b");
  before.insert(before.end(), best.begin(), best.end());  // next to the document
  EXPECT_GT(resolved("c").contexts.size(), 1u);
  expect_behind("c", before);
  for (const QueryContext& c : resolved("c").contexts)
    EXPECT_TRUE(store_->find_segment(*c.key)) << "its KV was computed so";
}

TEST_F(RelatedChunksTest, TheNumberOfTokensIsALimit) {
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", prose(60, 2))));
  find({{"b", 0}, {"a", 0}});
  put(one(doc("c", "A lake.")), behind(static_cast<std::int32_t>(ids_of("b").size()) - 1));
  expect_behind("c", ids_of("a"));
  const auto window = static_cast<std::size_t>(engine_->info().max_model_len);
  BatchOptions whole = behind(kMaxRelatedTokens);
  whole.chunking.strategy = ChunkStrategy::kNone;
  for (std::size_t words = 400; resolved("c").contexts[0].left_context.size() > 0; words += 50) {
    const JobSnapshot job = put(one(doc("c", prose(words, 3))), whole);
    if (result(job) != "updated") break;  // it does not fit by itself
    const QueryContext c = resolved("c").contexts[0];
    EXPECT_LT(c.left_context.size() + c.token_ids.size(), window);
  }
}

TEST_F(RelatedChunksTest, OtherSaltsAndTextsWithoutKvAreNotSeen) {
  BatchOptions salted, text_only;
  salted.cache_salt = "eight characters";
  text_only.kv = KvPolicy::kTextOnly;
  put(one(doc("a", "The lake is deep.")), salted);
  put(one(doc("b", "A mill stands at the lake.")), text_only);
  put(one(doc("d", "The lake is cold.")));
  find({{"a", 0}, {"b", 0}, {"d", 0}});
  put(one(doc("c", "A lake.")), behind(500));
  expect_behind("c", ids_of("d"));
}

TEST_F(RelatedChunksTest, TheSamePostLooksAgain) {
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", "A mill stands at the lake.")));
  find({{"a", 0}});
  put(one(doc("c", "A lake.")), behind(500));
  const auto before = engine_->prefills();
  EXPECT_EQ(result(put(one(doc("c", "A lake.")), behind(500))), "unchanged");
  EXPECT_EQ(engine_->prefills(), before);
  find({{"b", 0}});
  EXPECT_EQ(result(put(one(doc("c", "A lake.")), behind(500))), "updated");
  expect_behind("c", ids_of("b"));
  EXPECT_EQ(result(put(one(doc("c", "A lake.")))), "updated") << "without related chunks";
  expect_behind("c", {});
}

TEST_F(RelatedChunksTest, WhatIsDeletedOrChangedIsNotUsedAndTheKvIsMadeAnew) {
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", "A mill stands at the lake.")));
  find({{"a", 0}, {"b", 0}});
  BatchOptions lazy = behind(500);
  lazy.kv = KvPolicy::kLazy;
  put(one(doc("c", "A lake.")), behind(500));
  put(one(doc("d", "A cold lake.")), lazy);
  ASSERT_OK(service_->documents().remove("default", "a"));
  expect_behind("c", {});
  wait_for_version("c", 2);
  expect_behind("c", ids_of("b"));
  EXPECT_TRUE(store_->find_segment(*resolved("c").contexts[0].key));
  expect_behind("d", {});
  wait_for_version("d", 2);
  expect_behind("d", ids_of("b"));
  put(one(doc("b", "The mill has burnt down.")));
  expect_behind("c", {});
  wait_for_version("c", 3);
  expect_behind("c", ids_of("b"));
}

TEST_F(RelatedChunksTest, KeysWithoutWhatVanishedAreNoNamesOfTheDocument) {
  put(one(doc("a", "The lake is deep.")));
  find({{"a", 0}});
  put(one(doc("c", "A lake.")), behind(500));
  EXPECT_FALSE(resolved("c").contexts.at(0).unnamed);
  ASSERT_OK(service_->documents().remove("default", "a"));
  EXPECT_TRUE(resolved("c").contexts.at(0).unnamed);
  wait_for_version("c", 2);
  EXPECT_FALSE(resolved("c").contexts.at(0).unnamed);
}

TEST_F(RelatedChunksTest, WhatMayBeSeenNoMoreIsNotUsed) {
  BatchOptions salted, text_only;
  salted.cache_salt = "eight characters";
  text_only.kv = KvPolicy::kTextOnly;
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", "A mill stands at the lake.")));
  find({{"a", 0}, {"b", 0}});
  put(one(doc("c", "A lake.")), behind(500));
  Ids both = ids_of("b");
  const Ids best = ids_of("a");
  both.insert(both.end(), best.begin(), best.end());
  expect_behind("c", both);
  put(one(doc("a", "The lake is deep.")), text_only);
  expect_behind("c", {});
  wait_for_version("c", 2);
  expect_behind("c", ids_of("b"));
  put(one(doc("b", "A mill stands at the lake.")), salted);
  expect_behind("c", {});
  wait_for_version("c", 3);
  expect_behind("c", {});
  EXPECT_TRUE(store_->find_segment(*resolved("c").contexts[0].key));
}

TEST_F(RelatedChunksTest, ALeadInStandsBeforeAllElseAndStays) {
  const Ids lead = lead_in(engine_->prompt_format())->token_ids;
  ASSERT_GT(lead.size(), 10u);
  put(one(doc("a", "The lake is deep.")));
  BatchOptions options;
  options.chunking.lead_in = true;
  EXPECT_EQ(result(put(one(doc("c", "A lake.")), options)), "created");
  expect_behind("c", lead);
  EXPECT_EQ(resolved("c").contexts[0].read_behind, *read_behind_lead_in(engine_->prompt_format()));
  EXPECT_EQ(resolved("a").contexts[0].read_behind, ReadBehind());
  EXPECT_TRUE(asked_.empty());
  EXPECT_EQ(result(put(one(doc("c", "A lake.")), options)), "unchanged");
  EXPECT_EQ(store_->get_document("default", "c")->num_tokens, ids_of("c").size());
  find({{"a", 0}});
  options.chunking.related_tokens = 500;
  EXPECT_EQ(result(put(one(doc("c", "A lake.")), options)), "updated");
  Ids both = lead;
  const Ids other = ids_of("a");
  both.insert(both.end(), other.begin(), other.end());
  expect_behind("c", both);
  EXPECT_EQ(resolved("c").contexts[0].read_behind.kind, ReadBehind::Kind::kRelated);
  ASSERT_OK(service_->documents().remove("default", "a"));
  expect_behind("c", lead);
  EXPECT_EQ(resolved("c").contexts[0].read_behind, *read_behind_lead_in(engine_->prompt_format()));
  wait_for_version("c", 3);
  expect_behind("c", lead);
}

TEST_F(RelatedChunksTest, EveryChunkCountsByWhatStandsBeforeTheDocument) {
  BatchOptions options;
  options.chunking.max_tokens = 64;
  options.chunking.lead_in = true;
  put(one(doc("c", prose(200, 1))), options);
  options.chunking.lead_in = false;
  put(one(doc("a", prose(200, 1))), options);
  const auto behind = *read_behind_lead_in(engine_->prompt_format());
  const ResolvedDocument c = resolved("c"), a = resolved("a");
  ASSERT_GT(c.contexts.size(), 2u);
  EXPECT_EQ(readings_of(c.contexts), std::vector<ReadBehind>{behind});
  EXPECT_EQ(readings_of(a.contexts), std::vector<ReadBehind>{ReadBehind()})
      << "its own chunks before a chunk are not another text";
}

/// The service decides where a request does not say whether there is to be a lead-in.
class LeadInByDefaultTest : public RelatedChunksTest {
 protected:
  void SetUp() override {
    options_.lead_in = [this](std::string_view) { return by_default_.load(); };
    RelatedChunksTest::SetUp();
  }
  /// Posts the document and returns what became of it and behind what it was read.
  std::string post(const std::string& text, std::optional<bool> lead_in = std::nullopt,
                   std::int32_t related = 0) {
    BatchOptions options = behind(related);
    options.chunking.lead_in = lead_in;
    const auto before = engine_->prefills();
    const std::string what = result(put(one(doc("c", text)), options));
    EXPECT_EQ(engine_->prefills() == before, what == "unchanged");
    const auto info = service_->documents().get("default", "c");
    EXPECT_EQ(info->read_behind, resolved("c").contexts[0].read_behind);
    return what + " " + std::string(read_behind_name(info->read_behind->kind));
  }
  std::atomic<bool> by_default_{true};
};

TEST_F(LeadInByDefaultTest, CountsForNewTextsOnly) {
  EXPECT_EQ(post("A lake."), "created lead_in");
  EXPECT_EQ(post("A lake."), "unchanged lead_in");
  by_default_ = false;
  EXPECT_EQ(post("A lake."), "unchanged lead_in") << "nobody asked for another reading";
  EXPECT_EQ(post("A deep lake."), "updated nothing");
  by_default_ = true;
  EXPECT_EQ(post("A deep lake."), "unchanged nothing");
}

TEST_F(LeadInByDefaultTest, ARequestThatSaysItIsObeyed) {
  EXPECT_EQ(post("A lake.", false), "created nothing");
  EXPECT_EQ(post("A lake."), "unchanged nothing");
  EXPECT_EQ(post("A lake.", true), "updated lead_in");
  EXPECT_EQ(post("A lake.", true), "unchanged lead_in");
  EXPECT_EQ(post("A lake.", false), "updated nothing");
}

TEST_F(LeadInByDefaultTest, OtherRelatedChunksLeaveItAsItWas) {
  put(one(doc("a", "The lake is deep.")));
  put(one(doc("b", "A mill stands at the lake.")));
  by_default_ = false;
  find({{"a", 0}});
  EXPECT_EQ(post("A lake.", std::nullopt, 500), "created related");
  expect_behind("c", ids_of("a"));
  by_default_ = true;
  EXPECT_EQ(post("A lake.", std::nullopt, 500), "unchanged related");
  find({{"b", 0}});
  EXPECT_EQ(post("A lake.", std::nullopt, 500), "updated related");
  expect_behind("c", ids_of("b"));
}

TEST_F(LeadInByDefaultTest, ADocumentWithoutKvWasReadBehindNothing) {
  BatchOptions text_only;
  text_only.kv = KvPolicy::kTextOnly;
  put(one(doc("c", "A lake.")), text_only);
  EXPECT_FALSE(service_->documents().get("default", "c")->read_behind);
  EXPECT_EQ(resolved("c").contexts[0].read_behind, ReadBehind());
}

TEST_F(RelatedChunksTest, AnIndexThatIsNotCompleteIsWaitedFor) {
  put(one(doc("a", "The lake is deep.")));
  find({{"a", 0}});
  {
    const std::lock_guard lock(mu_);
    unavailable_ = 3;
  }
  put(one(doc("c", "A lake.")), behind(500));
  expect_behind("c", ids_of("a"));
}

TEST_F(RelatedChunksTest, WhoWaitsForTheIndexHoldsUpNoOther) {
  service_->stop();
  options_.num_workers = options_.max_documents_in_flight = 1;
  make_service();
  put(one(doc("a", "The lake is deep.")));
  find({{"a", 0}});
  const auto complete = [this](bool is) {
    const std::lock_guard lock(mu_);
    unavailable_ = is ? 0 : 1'000'000;
  };
  complete(false);
  const auto c = service_->submit("default", one(doc("c", "A lake.")), behind(500));
  const auto d = service_->submit("default", one(doc("d", "A cold lake.")), behind(500));
  ASSERT_OK(c);
  ASSERT_OK(d);
  EXPECT_EQ(result(put(one(doc("x", "A hill.")))), "created");
  EXPECT_FALSE(service_->jobs().job("default", c->id)->finished());
  EXPECT_FALSE(service_->jobs().job("default", d->id)->finished());
  EXPECT_OK(service_->jobs().cancel_job("default", d->id));
  EXPECT_EQ(wait(d).status, JobStatus::kCancelled);
  complete(true);
  EXPECT_EQ(result(wait(c)), "created");
  expect_behind("c", ids_of("a"));
  EXPECT_EQ(service_->stats().documents_in_flight, 0);
}

TEST_F(RelatedChunksTest, AStopEndsTheWaitForTheIndexAndTheNextStartGoesOn) {
  put(one(doc("a", "The lake is deep.")));
  find({{"a", 0}});
  {
    const std::lock_guard lock(mu_);
    unavailable_ = 1'000'000;
  }
  const auto c = service_->submit("default", one(doc("c", "A lake.")), behind(500));
  ASSERT_OK(c);
  while (asked() == 0) std::this_thread::yield();
  service_->stop();
  {
    const std::lock_guard lock(mu_);
    unavailable_ = 0;
  }
  make_service();
  EXPECT_EQ(result(wait(c)), "created");
  expect_behind("c", ids_of("a"));
}

TEST_F(RelatedChunksTest, ThereIsNoneWithoutAnIndex) {
  service_->stop();
  options_.find_chunks = {};
  make_service();
  const auto job = service_->submit("default", one(doc("c", "A lake.")), behind(500));
  EXPECT_EQ(job.code(), Code::kInvalidArgument);
  EXPECT_EQ(job.status().field(), "chunking.related_tokens");
  EXPECT_EQ(service_->submit("default", one(doc("c", "A lake.")), behind(kMaxRelatedTokens + 1))
                .status()
                .field(),
            "chunking.related_tokens");
}

}  // namespace
}  // namespace quire
