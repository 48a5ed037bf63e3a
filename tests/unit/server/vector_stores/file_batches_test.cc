// Batches attach files behind their calls, wait for documents, and go on after a restart.
#include "server/vector_stores/file_batches.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <map>
#include <set>

#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/store_admin.h"
#include "server/config/config.h"
#include "server/service/services.h"
#include "server/vector_stores/vector_stores.h"
#include "tests/support/harness/memory_catalog.h"
#include "tests/support/harness/test_store.h"
#include "tests/support/model_files.h"
#include "tests/support/status_matchers.h"
#include "tests/support/stub_services.h"

namespace quire {
namespace {

using enum BatchFileState;

/// Documents that are ready, being cached, or failed, as the test says.
class FakeDocuments : public test::StubIngest {
 public:
  void set(const std::string& id, DocumentStatus status) {
    std::vector<JobListener> ready;
    {
      const std::lock_guard lock(mu_);
      documents_[id].id = id;
      documents_[id].job_id = id;
      documents_[id].status = status;
      if (status == DocumentStatus::kFailed)
        documents_[id].error = ItemError{"empty_document", "text has no text", ""};
      if (!is_pending(id)) ready.swap(waiting_[id]);
    }
    for (const auto& call : ready) call(JobEvent::kDone, JobSnapshot());
  }
  /// Makes changes fail as they do while the catalog is away.
  void set_away(bool away) {
    const std::lock_guard lock(mu_);
    patches_away_ = away;
  }
  /// Another replica replaces the document, by the job of another one.
  void set_replaced(const std::string& id, const std::string& job) {
    const std::lock_guard lock(mu_);
    replaced_ = id;
    replacing_ = job;
  }
  /// As set_replaced(), but the job has ended once somebody asks which it is.
  void set_just_replaced(const std::string& id) {
    const std::lock_guard lock(mu_);
    just_replaced_ = id;
  }
  /// Makes the question which job replaces a document fail as while the catalog is away, once.
  void lose_next_look() {
    const std::lock_guard lock(mu_);
    loses_look_ = true;
  }
  /// Makes changes of the document wait until it is let go.
  void hold(const std::string& id) {
    const std::lock_guard lock(mu_);
    held_ = id;
    reached_ = false;
  }
  void wait_until_held() {
    std::unique_lock lock(mu_);
    ASSERT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20), [this] { return reached_; }));
  }
  void let_go() {
    const std::lock_guard lock(mu_);
    held_.clear();
    changed_.notify_all();
  }
  std::string metadata(const std::string& id) {
    const std::lock_guard lock(mu_);
    return documents_[id].metadata_json;
  }
  std::size_t waiting() {
    const std::lock_guard lock(mu_);
    std::size_t n = 0;
    for (const auto& [_, calls] : waiting_) n += calls.size();
    return n;
  }

  Result<DocumentInfo> get(std::string_view, std::string_view id) override {
    const std::lock_guard lock(mu_);
    const auto it = documents_.find(std::string(id));
    if (it == documents_.end()) return Status::not_found("no document");
    DocumentInfo d = it->second;
    if (is_pending(d.id)) d.progress = 0.5;
    return d;
  }
  Result<DocumentInfo> patch(std::string_view, std::string_view id,
                             const DocumentPatch& patch) override {
    std::unique_lock lock(mu_);
    if (held_ == id) {
      reached_ = true;
      changed_.notify_all();
      changed_.wait(lock, [&] { return held_ != id; });
    }
    if (patches_away_) return catalog_away("it is away in this test");
    if ((replaced_ == id && is_pending(replacing_)) || just_replaced_ == id)
      return Status::precondition("it is replaced");
    DocumentInfo& d = documents_[std::string(id)];
    d.metadata_json = *patch.metadata_json;
    return d;
  }
  Result<std::optional<std::string>> replacing_job(std::string_view, std::string_view id) override {
    const std::lock_guard lock(mu_);
    just_replaced_.clear();
    if (std::exchange(loses_look_, false)) return catalog_away("it is away in this test");
    const bool is = replaced_ == id && is_pending(replacing_);
    return is ? std::optional(replacing_) : std::nullopt;
  }
  /// The job of a document has its id.
  Result<Subscription> subscribe(std::string_view, std::string_view job_id,
                                 JobListener listener) override {
    {
      const std::lock_guard lock(mu_);
      if (is_pending(std::string(job_id))) {
        waiting_[std::string(job_id)].push_back(std::move(listener));
        changed_.notify_all();
        return Subscription(std::make_shared<int>(0));
      }
    }
    listener(JobEvent::kDone, JobSnapshot());
    return Subscription();
  }
  bool wait_for_waiter() {
    std::unique_lock lock(mu_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [this] {
      for (const auto& [_, calls] : waiting_)
        if (!calls.empty()) return true;
      return false;
    });
  }

 private:
  bool is_pending(const std::string& id) {
    const auto it = documents_.find(id);
    return it != documents_.end() && it->second.status < DocumentStatus::kReady;
  }

  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, DocumentInfo> documents_;
  std::map<std::string, std::vector<JobListener>> waiting_;
  std::string held_, replaced_, replacing_, just_replaced_;
  bool reached_ = false, patches_away_ = false, loses_look_ = false;
};

class FileBatchesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions options;
    options.path = (folder_.path() / "store").string();
    options.dram_bytes = 1 << 20;
    auto store = open_admin_store(options);
    ASSERT_TRUE(store.ok()) << store.status().to_string();
    store_ = std::move(*store);
    start();
    ASSERT_OK(change_vector_stores(*services_, "n", [](std::vector<VectorStore>& stores) {
      stores.push_back({.id = "vs", .created_ms = 1});
      return Status();
    }));
  }
  void TearDown() override { stop(); }
  void start() {
    services_ = std::make_unique<Services>(Config());
    services_->store = store_.get();
    services_->ingest = &documents_;
    services_->file_batches = std::make_shared<FileBatches>(*services_);
  }
  void stop() {
    if (!services_) return;
    batches().stop();
    services_->timers->stop();
    services_->workers->stop();
    services_.reset();
  }
  FileBatches& batches() { return *services_->file_batches; }
  static FileBatch batch(const std::string& id, const std::vector<std::string>& files) {
    FileBatch b;
    b.id = id;
    b.store_id = "vs";
    b.created_ms = 5;
    for (const std::string& f : files) b.files.push_back({.id = f});
    return b;
  }
  FileBatch now(const std::string& id) {
    auto b = batches().get("n", "vs", id);
    EXPECT_TRUE(b.ok()) << b.status().to_string();
    return b.ok() ? *b : FileBatch();
  }
  /// Waits until the batch is as the function wants it.
  FileBatch wait(const std::string& id, const std::function<bool(const FileBatch&)>& enough) {
    for (int i = 0; i < 20000; ++i) {
      const FileBatch b = now(id);
      if (enough(b)) return b;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "the batch stays as " << file_batch_text(now(id));
    return now(id);
  }
  FileBatch wait_end(const std::string& id) {
    return wait(id, [](const FileBatch& b) { return b.ended(); });
  }
  /// Waits until the list of unfinished batches is empty, which comes after their end.
  void wait_until_none_runs() {
    for (int i = 0; i < 20000 && store_->get_meta("server/file_batches").ok(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(store_->get_meta("server/file_batches").code(), Code::kNotFound);
  }
  static std::vector<BatchFileState> states(const FileBatch& b) {
    std::vector<BatchFileState> out;
    for (const BatchFile& f : b.files) out.push_back(f.state);
    return out;
  }

  testing::TempFolder folder_;
  std::unique_ptr<AdminStore> store_;
  FakeDocuments documents_;
  std::unique_ptr<Services> services_;
};

TEST_F(FileBatchesTest, AttachesWhatIsReadyAndSaysWhyTheRestFailed) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set("b", DocumentStatus::kFailed);
  FileBatch b = batch("vsfb", {"a", "b", "c"});
  b.attributes = {{"year", 1931}};
  ASSERT_OK(batches().begin("n", b));
  const FileBatch ended = wait_end("vsfb");
  EXPECT_EQ(states(ended), (std::vector{kCompleted, kFailed, kFailed}));
  EXPECT_EQ(ended.files[1].error_code, "invalid_file");
  EXPECT_EQ(ended.files[1].error_message, "text has no text");
  EXPECT_NE(ended.files[2].error_message.find("no document 'c'"), std::string::npos);
  EXPECT_EQ(documents_.metadata("a"), R"({"vector_stores":["vs"],"year":1931})");
  EXPECT_TRUE(batches().waiting("n", "vs", {"vsfb"}).empty());
}

TEST_F(FileBatchesTest, ManyFilesAreAttachedInOrder) {
  std::vector<std::string> ids;
  for (int i = 0; i < 50; ++i) {
    ids.push_back("d" + std::to_string(i));
    documents_.set(ids.back(), DocumentStatus::kReady);
  }
  ASSERT_OK(batches().begin("n", batch("vsfb", ids)));
  EXPECT_EQ(wait_end("vsfb").count(kCompleted), 50u);
}

TEST_F(FileBatchesTest, WaitsForADocumentThatIsBeingCached) {
  documents_.set("slow", DocumentStatus::kPrefilling);
  documents_.set("a", DocumentStatus::kReady);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"slow", "a"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  EXPECT_EQ(states(now("vsfb")), (std::vector{kInProgress, kCompleted}));
  EXPECT_EQ(batches().waiting("n", "vs", {"vsfb"}), std::vector<std::string>{"slow"});
  documents_.set("slow", DocumentStatus::kReady);
  EXPECT_EQ(states(wait_end("vsfb")), (std::vector{kCompleted, kCompleted}));
}

TEST_F(FileBatchesTest, WaitsForADocumentThatAnotherReplicaIsReplacing) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set("job", DocumentStatus::kPrefilling);
  documents_.set_replaced("a", "job");
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  EXPECT_EQ(states(now("vsfb")), std::vector{kInProgress});
  documents_.set("job", DocumentStatus::kReady);
  EXPECT_EQ(states(wait_end("vsfb")), std::vector{kCompleted});
}

TEST_F(FileBatchesTest, AJobThatEndsBetweenTheRefusalAndTheLookFailsNoFile) {
  for (const char* id : {"a", "b"}) documents_.set(id, DocumentStatus::kReady);
  documents_.set_just_replaced("a");
  ASSERT_OK(batches().begin("n", batch("vsfb1", {"a"})));
  EXPECT_EQ(states(wait_end("vsfb1")), std::vector{kCompleted});
  documents_.set_just_replaced("b");
  documents_.lose_next_look();
  ASSERT_OK(batches().begin("n", batch("vsfb2", {"b"})));
  EXPECT_EQ(states(wait_end("vsfb2")), std::vector{kCompleted}) << "nor does a look that is lost";
}

TEST_F(FileBatchesTest, CancelStopsWhatIsNotBegunAndNothingElse) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set("b", DocumentStatus::kReady);
  documents_.hold("a");
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a", "b"})));
  documents_.wait_until_held();
  const auto cancelled = batches().cancel("n", "vs", "vsfb");
  ASSERT_OK(cancelled.status());
  EXPECT_TRUE(cancelled->cancelled);
  EXPECT_EQ(states(*cancelled), (std::vector{kInProgress, kCancelled}));
  documents_.let_go();
  EXPECT_EQ(states(wait_end("vsfb")), (std::vector{kCompleted, kCancelled}));
  EXPECT_EQ(documents_.metadata("b"), "");
  const auto again = batches().cancel("n", "vs", "vsfb");
  ASSERT_OK(again.status());
  EXPECT_EQ(states(*again), (std::vector{kCompleted, kCancelled}));
}

TEST_F(FileBatchesTest, CancelEndsABatchThatWaits) {
  documents_.set("slow", DocumentStatus::kQueued);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"slow"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  const auto cancelled = batches().cancel("n", "vs", "vsfb");
  ASSERT_OK(cancelled.status());
  EXPECT_EQ(states(*cancelled), std::vector{kCancelled});
  documents_.set("slow", DocumentStatus::kReady);
  EXPECT_EQ(states(now("vsfb")), std::vector{kCancelled});
  EXPECT_EQ(documents_.metadata("slow"), "");
}

TEST_F(FileBatchesTest, GoesOnAfterARestart) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set("slow", DocumentStatus::kTokenizing);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a", "slow"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  stop();
  documents_.set("slow", DocumentStatus::kReady);
  start();
  batches().resume();
  // Nobody asks for it by name.
  for (int i = 0; i < 20000 && !batches().waiting("n", "vs", {"vsfb"}).empty(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(documents_.metadata("slow"), R"({"vector_stores":["vs"]})");
  EXPECT_EQ(states(now("vsfb")), (std::vector{kCompleted, kCompleted}));
}

TEST_F(FileBatchesTest, ABatchThatTheListLacksGoesOnOnceAskedFor) {
  documents_.set("a", DocumentStatus::kQueued);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  stop();
  ASSERT_OK(store_->put_meta("server/file_batches", "no list"));
  documents_.set("a", DocumentStatus::kReady);
  start();
  batches().resume();
  EXPECT_TRUE(batches().waiting("n", "vs", {"vsfb"}).empty());
  EXPECT_EQ(states(wait_end("vsfb")), std::vector{kCompleted});
}

TEST_F(FileBatchesTest, ABatchBelongsToItsNamespaceAndVectorStore) {
  documents_.set("slow", DocumentStatus::kQueued);
  documents_.set("a", DocumentStatus::kReady);
  ASSERT_OK(batches().begin("n", batch("running", {"slow"})));
  ASSERT_OK(batches().begin("n", batch("ended", {"a"})));
  (void)wait_end("ended");
  for (const char* id : {"running", "ended"}) {
    EXPECT_EQ(batches().get("n", "other", id).code(), Code::kNotFound);
    EXPECT_EQ(batches().get("m", "vs", id).code(), Code::kNotFound);
    EXPECT_EQ(batches().cancel("n", "other", id).code(), Code::kNotFound);
  }
  EXPECT_TRUE(batches().waiting("m", "vs", {"running", "ended"}).empty());
  FileBatch stray = batch("stray", {"a"});
  stray.store_id = "none";
  EXPECT_EQ(batches().begin("n", stray).code(), Code::kNotFound);
  EXPECT_EQ(batches().get("n", "none", "stray").code(), Code::kNotFound);
}

TEST_F(FileBatchesTest, AVectorStoresBatchesGoWithIt) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set("slow", DocumentStatus::kQueued);
  ASSERT_OK(batches().begin("n", batch("ended", {"a"})));
  (void)wait_end("ended");
  ASSERT_OK(batches().begin("n", batch("running", {"slow"})));
  ASSERT_TRUE(documents_.wait_for_waiter());
  batches().forget("n", {"ended", "running"});
  documents_.set("slow", DocumentStatus::kReady);
  stop();  // runs what was queued
  EXPECT_EQ(documents_.metadata("slow"), "");
  EXPECT_EQ(store_->get_meta("server/file_batches/n/ended").code(), Code::kNotFound);
  EXPECT_EQ(store_->get_meta("server/file_batches/n/running").code(), Code::kNotFound);
  EXPECT_EQ(store_->get_meta("server/file_batches").code(), Code::kNotFound);
}

TEST_F(FileBatchesTest, TheOldestEndedBatchMakesRoomAndRunningOnesStay) {
  documents_.set("slow", DocumentStatus::kQueued);
  documents_.set("a", DocumentStatus::kReady);
  ASSERT_OK(batches().begin("n", batch("running", {"slow"})));
  ASSERT_OK(batches().begin("n", batch("ended", {"a"})));
  (void)wait_end("ended");
  for (std::size_t i = 2; i < FileBatches::kMostOfAStore; ++i)
    ASSERT_OK(batches().begin("n", batch("more" + std::to_string(i), {"slow"})));
  ASSERT_OK(batches().begin("n", batch("last", {"slow"})));
  EXPECT_EQ(batches().get("n", "vs", "ended").code(), Code::kNotFound);
  EXPECT_EQ(now("running").count(kInProgress), 1u);
  const Status full = batches().begin("n", batch("one too many", {"slow"}));
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(full.field(), "file_batches");
}

TEST_F(FileBatchesTest, ADamagedRecordIsAnError) {
  documents_.set("a", DocumentStatus::kReady);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a"})));
  wait_until_none_runs();
  ASSERT_OK(store_->put_meta("server/file_batches/n/vsfb", "{}"));
  EXPECT_EQ(batches().get("n", "vs", "vsfb").code(), Code::kCorruption);
}

TEST_F(FileBatchesTest, ACatalogThatIsAwayFailsNoFile) {
  documents_.set("a", DocumentStatus::kReady);
  documents_.set_away(true);
  ASSERT_OK(batches().begin("n", batch("vsfb", {"a", "none"})));
  wait("vsfb", [](const FileBatch& b) { return b.count(kFailed) == 1; });
  EXPECT_EQ(states(now("vsfb")), (std::vector{kInProgress, kFailed}));
  documents_.set_away(false);
  EXPECT_EQ(states(wait_end("vsfb")), (std::vector{kCompleted, kFailed}));
}

/// Two services over one catalog. Both see the same documents, and each its own batches.
class SharedFileBatchesTest : public ::testing::Test {
 protected:
  static constexpr std::chrono::milliseconds kTakeOver{300};
  struct Replica {
    std::shared_ptr<test::MemoryDisk> disk = std::make_shared<test::MemoryDisk>();
    std::unique_ptr<AdminStore> store;
    std::unique_ptr<Services> services;
    FileBatches& batches() const { return *services->file_batches; }
  };

  SharedFileBatchesTest() {
    for (Replica* r : {&a_, &b_}) {
      StoreOptions options;
      options.catalog.poll = std::chrono::milliseconds(20);
      auto store = open_store_on(options, std::make_unique<test::MemoryTier>(r->disk), {},
                                 std::make_unique<test::MemoryCatalog>(database_));
      EXPECT_OK(store.status());
      r->store = std::move(*store);
      r->services = std::make_unique<Services>(Config());
      r->services->store = r->store.get();
      r->services->ingest = &documents_;
      r->services->file_batches = std::make_shared<FileBatches>(*r->services, kTakeOver);
    }
    EXPECT_OK(change_vector_stores(*a_.services, "n", [](std::vector<VectorStore>& stores) {
      stores.push_back({.id = "vs", .created_ms = 1});
      return Status();
    }));
  }
  ~SharedFileBatchesTest() override {
    for (Replica* r : {&a_, &b_}) stop(*r);
  }
  static void stop(Replica& r) {
    if (!r.services) return;
    r.batches().stop();
    r.services->timers->stop();
    r.services->workers->stop();
    r.services.reset();
  }
  static Status begin(const Replica& r, const std::vector<std::string>& files,
                      const std::string& id = "vsfb") {
    FileBatch b;
    b.id = id;
    b.store_id = "vs";
    for (const std::string& f : files) b.files.push_back({.id = f});
    return r.batches().begin("n", b);
  }
  /// Returns the states of the batch's files as a replica tells them, one letter each.
  static std::string states(const Replica& r, const std::string& id = "vsfb") {
    const auto batch = r.batches().get("n", "vs", id);
    if (!batch.ok()) return batch.status().to_string();
    std::string out;
    for (const BatchFile& f : batch->files) out += batch_file_state_name(f.state)[0];
    return out;
  }
  static std::string wait_for(const std::string& wanted, const Replica& r) {
    std::string seen;
    for (int i = 0; i < 4000 && (seen = states(r)) != wanted; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return seen;
  }

  FakeDocuments documents_;
  std::shared_ptr<test::MemoryDatabase> database_ = std::make_shared<test::MemoryDatabase>();
  Replica a_, b_;
};

TEST_F(SharedFileBatchesTest, EveryReplicaTellsOfABatch) {
  documents_.set("slow", DocumentStatus::kPrefilling);
  documents_.set("x", DocumentStatus::kReady);
  ASSERT_OK(begin(a_, {"slow", "x", "none"}));
  EXPECT_EQ(wait_for("icf", b_), "icf");
  EXPECT_EQ(b_.batches().waiting("n", "vs", {"vsfb"}), std::vector<std::string>{"slow"});
  EXPECT_EQ(b_.batches().get("n", "other", "vsfb").code(), Code::kNotFound);
  documents_.set("slow", DocumentStatus::kReady);
  EXPECT_EQ(wait_for("ccf", b_), "ccf");
  EXPECT_TRUE(b_.batches().waiting("n", "vs", {"vsfb"}).empty());
  EXPECT_EQ(documents_.waiting(), 0u);
}

TEST_F(SharedFileBatchesTest, AnotherReplicaCancels) {
  documents_.set("slow", DocumentStatus::kPrefilling);
  documents_.set("x", DocumentStatus::kReady);
  ASSERT_OK(begin(a_, {"x", "slow"}));
  EXPECT_EQ(wait_for("ci", b_), "ci");
  const auto cancelled = b_.batches().cancel("n", "vs", "vsfb");
  ASSERT_OK(cancelled.status());
  EXPECT_TRUE(cancelled->cancelled);
  EXPECT_EQ(states(b_), "cc");
  EXPECT_EQ(cancelled->files[1].state, kCancelled);
  const auto there = a_.batches().get("n", "vs", "vsfb");
  ASSERT_OK(there.status());
  EXPECT_EQ(there->files[1].state, kCancelled);
  documents_.set("slow", DocumentStatus::kReady);
  for (Replica* r : {&a_, &b_}) stop(*r);
  EXPECT_EQ(documents_.metadata("slow"), "");
}

TEST_F(SharedFileBatchesTest, WhatAReplicaThatIsGoneHasBegunGoesOnElsewhere) {
  documents_.set("slow", DocumentStatus::kPrefilling);
  ASSERT_OK(begin(a_, {"slow"}));
  ASSERT_TRUE(documents_.wait_for_waiter());
  stop(a_);
  documents_.set("slow", DocumentStatus::kReady);
  EXPECT_EQ(states(b_), "i");
  EXPECT_EQ(wait_for("c", b_), "c");
  EXPECT_EQ(documents_.metadata("slow"), R"({"vector_stores":["vs"]})");
}

TEST_F(SharedFileBatchesTest, ABatchIsDeletedForAll) {
  documents_.set("slow", DocumentStatus::kPrefilling);
  ASSERT_OK(begin(a_, {"slow"}));
  ASSERT_TRUE(documents_.wait_for_waiter());
  b_.batches().forget("n", {"vsfb"});
  EXPECT_EQ(b_.batches().get("n", "vs", "vsfb").code(), Code::kNotFound);
  documents_.set("slow", DocumentStatus::kReady);
  for (int i = 0; i < 4000 && a_.batches().get("n", "vs", "vsfb").ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(a_.batches().get("n", "vs", "vsfb").code(), Code::kNotFound);
  stop(a_);
  EXPECT_EQ(documents_.metadata("slow"), "") << "nothing is attached to what is gone";
}

TEST_F(SharedFileBatchesTest, RunningBatchesOfOtherReplicasMakeNoRoom) {
  documents_.set("slow", DocumentStatus::kQueued);
  documents_.set("x", DocumentStatus::kReady);
  ASSERT_OK(begin(a_, {"slow"}, "running"));
  ASSERT_OK(begin(a_, {"x"}, "ended"));
  for (std::size_t i = 2; i < FileBatches::kMostOfAStore; ++i)
    ASSERT_OK(begin(a_, {"slow"}, "more" + std::to_string(i)));
  for (int i = 0; i < 4000 && states(b_, "ended") != "c"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_OK(begin(b_, {"slow"}, "last"));
  EXPECT_EQ(states(b_, "running"), "i");
  EXPECT_EQ(b_.batches().get("n", "vs", "ended").code(), Code::kNotFound);
  EXPECT_EQ(begin(b_, {"slow"}, "one too many").code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace quire
