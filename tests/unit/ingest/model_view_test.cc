// Documents as a further model reads them: always the stored text, in its own tokens, under its own
// keys, and with KV that goes when the document goes.
#include "ingest/model_view.h"

#include <atomic>
#include <map>
#include <thread>

#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;

class ModelViewTest : public IngestTest {
 protected:
  void SetUp() override { begin(); }
  void TearDown() override { end(); }
  void begin(std::int64_t window = 2048) {
    open();
    other_ = std::make_unique<FakeEngine>(*faulty_, "m-00000002", window);
    view_ = service_->documents_of(*other_);
  }
  void end() {
    view_.reset();
    other_.reset();
    shut();
  }
  Result<Resolved> resolve(const std::string& id, bool touch = true) {
    const std::vector<std::string> ids = {id};
    return view_->resolve("default", ids, {.touch = touch});
  }
  /// Returns what the further model would read of the document; empty: it is not there.
  std::string read(const std::string& id) {
    const auto r = resolve(id);
    EXPECT_OK(r);
    if (!r.ok() || r->documents.empty()) return {};
    std::string out;
    for (const QueryContext& c : r->documents[0].contexts)
      out += other_->tokenizer().decode(c.token_ids);
    return out;
  }
  /// Computes and stores the KV of a context, as the first query does.
  void compute(const QueryContext& context) {
    std::promise<Result<PrefillResult>> done;
    PrefillRequest request;
    request.token_ids = context.token_ids;
    request.left_context = context.left_context;
    request.tenant = service_->tenant("default");
    other_->prefill(std::move(request),
                    [&](Result<PrefillResult> r) { done.set_value(std::move(r)); });
    auto result = done.get_future().get();
    ASSERT_OK(result);
    ASSERT_EQ(result->key, *context.key);
    ASSERT_OK(store_->commit_segments(std::span(&result->segment, 1)));
  }
  bool has_kv(const ContextKey& key) { return store_->peek_segment(key).has_value(); }

  std::unique_ptr<FakeEngine> other_;
  std::unique_ptr<ModelDocuments> view_;
};

TEST_F(ModelViewTest, ADocumentHasTheKeysOfTheModelAndKeepsItsKv) {
  put(one(doc("a", "The bridge was built by Ann.", "", "Bridge")));
  const DocumentManifest before = *store_->get_document("default", "a");
  const auto r = resolve("a");
  ASSERT_OK(r);
  ASSERT_EQ(r->documents.size(), 1u);
  const ResolvedDocument& d = r->documents[0];
  EXPECT_EQ(d.content_hash, before.content_hash);
  EXPECT_FALSE(d.stale);
  ASSERT_EQ(d.contexts.size(), 1u);
  const QueryContext& c = d.contexts[0];
  EXPECT_EQ(c.title, "Bridge") << "a choice of blocks follows titles";
  ASSERT_TRUE(c.key.has_value());
  EXPECT_EQ(*c.key, other_->names().context_key(c.token_ids, "default", SaltDigest{}));
  EXPECT_NE(*c.key, before.chunks[0].key);
  EXPECT_TRUE(c.lazy);
  const DocumentManifest named = *store_->get_document("default", "a");
  EXPECT_EQ(named.companions, std::vector<ContextKey>{*c.key});
  EXPECT_EQ(named.version, before.version) << "to clients nothing has changed";
  EXPECT_EQ(named.fingerprint, before.fingerprint);

  compute(c);
  EXPECT_TRUE(has_kv(*c.key));
  EXPECT_TRUE(has_kv(before.chunks[0].key)) << "each model has its own";
  end();
  begin();
  EXPECT_TRUE(has_kv(*c.key)) << "it stays over a restart";
  ASSERT_OK(service_->documents().remove("default", "a"));
  EXPECT_FALSE(has_kv(*c.key)) << "it goes with its document";
  EXPECT_EQ(read("a"), "");
  EXPECT_EQ(resolve("a")->missing, std::vector<std::string>{"a"});
}

TEST_F(ModelViewTest, TheSameModelWithOtherBlocksKeepsKvOfItsOwn) {
  put(one(doc("a", prose(200, 1))));
  const DocumentManifest stored = *store_->get_document("default", "a");
  view_.reset();
  other_ = std::make_unique<FakeEngine>(*faulty_, stored.fingerprint, 2048, 64);
  view_ = service_->documents_of(*other_);
  const auto r = resolve("a");
  ASSERT_OK(r);
  const QueryContext& c = r->documents.at(0).contexts.at(0);
  EXPECT_EQ(c.token_ids, stored.chunks[0].token_ids);
  EXPECT_EQ(c.key, other_->names().context_key(c.token_ids, "default", SaltDigest{}));
  EXPECT_NE(c.key, stored.chunks[0].key);
  compute(c);
  EXPECT_TRUE(has_kv(*c.key));
  EXPECT_TRUE(has_kv(stored.chunks[0].key)) << "each model has its own";
  view_.reset();
  other_ = std::make_unique<FakeEngine>(*faulty_, stored.fingerprint);
  view_ = service_->documents_of(*other_);
  EXPECT_EQ(resolve("a")->documents.at(0).contexts.at(0).key, stored.chunks[0].key)
      << "with the same names it needs none";
}

TEST_F(ModelViewTest, AChangedDocumentIsNeverReadAsItWas) {
  put(one(doc("a", "The code is red.")));
  EXPECT_THAT(read("a"), ::testing::HasSubstr("red"));
  const ContextKey old = *resolve("a")->documents[0].contexts[0].key;
  compute(resolve("a")->documents[0].contexts[0]);
  put(one(doc("a", "The code is blue.")));
  EXPECT_THAT(read("a"), ::testing::HasSubstr("blue"));
  EXPECT_FALSE(has_kv(old));
  // Posted anew, it begins at the version that it had at first.
  ASSERT_OK(service_->documents().remove("default", "a"));
  put(one(doc("a", "The code is green.")));
  EXPECT_EQ(store_->get_document("default", "a")->version, 1u);
  EXPECT_THAT(read("a"), ::testing::HasSubstr("green"));
}

TEST_F(ModelViewTest, WhileADocumentChangesEveryReadIsOfOneVersion) {
  const std::string texts[] = {prose(700, 1), prose(800, 2)};
  std::map<std::string, std::string> by_hash;
  for (const std::string& text : texts) {
    put(one(doc("a", text)));
    by_hash[service_->documents().get("default", "a")->content_hash] = text;
  }
  ASSERT_EQ(by_hash.size(), 2u);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int i = 0; i < 30; ++i) {
      if (i % 7 == 3) (void)service_->documents().remove("default", "a");
      put(one(doc("a", texts[i % 2])));
    }
    over = true;
  });
  int reads = 0;
  for (; !over; ++reads) {
    const auto r = resolve("a");
    ASSERT_OK(r);
    if (r->documents.empty()) continue;
    const ResolvedDocument& d = r->documents[0];
    const std::string& text = by_hash.at(d.content_hash);
    for (std::size_t i = 0; i < d.contexts.size(); ++i) {
      const auto [begin, end] = d.byte_ranges[i];
      ASSERT_LE(end, text.size());
      EXPECT_EQ(d.contexts[i].token_ids,
                other_->prompt_format().document("", text.substr(begin, end - begin))->ids);
    }
  }
  writer.join();
  EXPECT_GT(reads, 0);
}

TEST_F(ModelViewTest, ChunksAreThoseOfTheServicesOwnModel) {
  BatchOptions options;
  options.chunking.max_tokens = 64;
  put(one(doc("a", prose(600, 3), "", "Title")), options);
  const DocumentManifest own = *store_->get_document("default", "a");
  ASSERT_GT(own.chunks.size(), 3u);
  const auto r = resolve("a");
  ASSERT_OK(r);
  const ResolvedDocument& d = r->documents[0];
  ASSERT_EQ(d.contexts.size(), own.chunks.size()) << "search counts by them";
  for (std::size_t i = 0; i < own.chunks.size(); ++i) {
    EXPECT_EQ(d.byte_ranges[i], std::pair(own.chunks[i].byte_begin, own.chunks[i].byte_end));
    EXPECT_EQ(d.contexts[i].left_context, left_context(own, i));
  }
  const auto mine = service_->documents().blocks("default", "a"),
             theirs = view_->blocks("default", "a");
  ASSERT_OK(theirs);
  ASSERT_EQ(theirs->size(), mine->size());
  for (std::size_t i = 0; i < mine->size(); ++i) {
    EXPECT_EQ((*theirs)[i].char_begin, (*mine)[i].char_begin);
    EXPECT_EQ((*theirs)[i].char_end, (*mine)[i].char_end);
    EXPECT_NE((*theirs)[i].block_id, (*mine)[i].block_id);
  }
  EXPECT_EQ(view_->blocks("default", "b").code(), Code::kNotFound);
}

TEST_F(ModelViewTest, APlanAndATextOnlyDocumentNameNothing) {
  put(one(doc("a", "text")));
  ASSERT_OK(resolve("a", /*touch=*/false));
  EXPECT_TRUE(store_->get_document("default", "a")->companions.empty());
  BatchOptions options;
  options.kv = KvPolicy::kTextOnly;
  put(one(doc("b", "text of another")), options);
  const auto r = resolve("b");
  ASSERT_OK(r);
  EXPECT_FALSE(r->documents[0].contexts[0].key.has_value());
  EXPECT_TRUE(store_->get_document("default", "b")->companions.empty());
}

TEST_F(ModelViewTest, AChunkThatIsTooLongForTheModelIsToldByName) {
  end();
  begin(/*window=*/100);
  put(one(doc("a", prose(300, 4))));
  const auto r = resolve("a");
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.code(), Code::kInvalidArgument);
  EXPECT_EQ(r.status().field(), "model");
  EXPECT_THAT(r.status().message(), ::testing::HasSubstr("'fake' cannot take"));
}

TEST_F(ModelViewTest, AModelOfTheSameFingerprintSharesTheKv) {
  view_.reset();
  other_ = std::make_unique<FakeEngine>(*faulty_, "m-00000001");
  view_ = service_->documents_of(*other_);
  put(one(doc("a", "text")));
  const DocumentManifest own = *store_->get_document("default", "a");
  const auto r = resolve("a");
  ASSERT_OK(r);
  EXPECT_EQ(*r->documents[0].contexts[0].key, own.chunks[0].key);
  EXPECT_TRUE(store_->get_document("default", "a")->companions.empty());
}

TEST_F(ModelViewTest, PinsHoldNoMoreThanTheyMay) {
  end();
  std::uint64_t room = 1 << 20;
  options_.may_pin = [&](const PinBytes& more) {
    return more.disk > room ? Status::exhausted("no room for pins") : Status();
  };
  begin();
  BatchOptions options;
  options.pinned = true;
  put(one(doc("a", "text")), options);
  room = 0;
  const auto refused = resolve("a");
  ASSERT_OK(refused);
  ASSERT_EQ(refused->documents.size(), 1u) << "it is answered from, only nothing is kept";
  EXPECT_FALSE(refused->documents[0].contexts[0].key.has_value());
  EXPECT_TRUE(store_->get_document("default", "a")->companions.empty());
  room = 1 << 20;
  ASSERT_TRUE(resolve("a")->documents[0].contexts[0].key.has_value());
  EXPECT_EQ(store_->get_document("default", "a")->companions.size(), 1u);
}

TEST_F(ModelViewTest, AFullDiskCostsNoAnswer) {
  put(one(doc("a", "The code is red.")));
  faulty_->fail_at(0, Status::exhausted("injected"));
  EXPECT_THAT(read("a"), ::testing::HasSubstr("red"));
  EXPECT_TRUE(faulty_->failed());
  EXPECT_TRUE(store_->get_document("default", "a")->companions.empty());
}

TEST_F(ModelViewTest, ARenditionIsMadeOnceForEachText) {
  PinGate gate({});
  Renditions renditions(*faulty_, *other_, gate, options_);
  const auto get = [&](const std::string& id) {
    ASSERT_OK(renditions.get("default", id, nullptr));
  };
  put(one(doc("a", "first")));
  get("a");
  get("a");
  DocumentPatch patch;
  patch.metadata_json = R"({"k":1})";
  ASSERT_OK(service_->documents().patch("default", "a", patch));
  get("a");
  EXPECT_EQ(renditions.made(), 1) << "metadata is not read by a model";
  put(one(doc("a", "second")));
  get("a");
  EXPECT_EQ(renditions.made(), 2);
  EXPECT_EQ(renditions.get("default", "b", nullptr).code(), Code::kNotFound);
}

}  // namespace
}  // namespace quire
