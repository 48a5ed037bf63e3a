// After a restart, unfinished jobs go on, finished ones are reported, and deleted documents stay
// deleted.
#include <chrono>
#include <thread>

#include "ingest/document/job_record.h"
#include "tests/support/harness/ingest_fixture.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using namespace test;

class RestartTest : public IngestTest {
 protected:
  void SetUp() override { open(); }
  /// Returns the current job records. Putting them back after a clean stop simulates a crash.
  std::vector<NamedRecord> records() { return *store_->list_jobs(); }
  void restore(const std::vector<NamedRecord>& saved) {
    for (const auto now = records(); const NamedRecord& r : now)
      ASSERT_OK(store_->delete_job(r.name));
    for (const NamedRecord& r : saved) ASSERT_OK(store_->put_job(r.name, r.value));
  }
  void crash_to(const std::vector<NamedRecord>& saved) {
    engine_->open();
    service_->stop();
    service_.reset();
    restore(saved);
    make_service();
  }
  JobSnapshot wait_id(const std::string& job_id) {
    return wait(service_->jobs().job("default", job_id));
  }
};

TEST_F(RestartTest, AJobGoesOnWhereItStopped) {
  engine_->close();
  engine_->permit(3);
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 12; ++i)
    batch.push_back(doc("d" + std::to_string(i), "text " + std::to_string(i)));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  shut();
  open();
  const JobSnapshot end = wait_id(job->id);
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  EXPECT_EQ(end.counts.completed, 12);
  for (int i = 0; i < 12; ++i)
    EXPECT_EQ(*service_->documents().content("default", "d" + std::to_string(i)),
              "text " + std::to_string(i));
  EXPECT_EQ(store_->list_jobs("input/", 1)->front().name.substr(0, 4), "job/")
      << "inputs are gone once the job has ended";
}

TEST_F(RestartTest, ARepeatedItemTellsTheSameResultAndComputesNothing) {
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "text")), {});
  engine_->wait_for_one();
  const auto saved = records();
  engine_->open();
  wait(job);
  const auto computed = engine_->prefills();
  ASSERT_OK(service_->documents().patch("default", "a", {.metadata_json = R"({"later":1})"}));
  crash_to(saved);
  const JobSnapshot end = wait_id(job->id);
  EXPECT_EQ(end.results[0].result, ItemResult::kCreated);
  EXPECT_EQ(engine_->prefills(), computed);
  EXPECT_EQ(service_->documents().get("default", "a")->metadata_json, R"({"later":1})")
      << "a later change stays";
}

TEST_F(RestartTest, AJobIsSynchronizedOnceItIsTakenAndOnceItHasEnded) {
  const int before = faulty_->durable_job_changes();
  EXPECT_EQ(put(one(doc("a", "text"))).status, JobStatus::kSucceeded);
  EXPECT_EQ(faulty_->durable_job_changes() - before, 2);
  engine_->fail_at(0, Status::internal("injected"));
  EXPECT_EQ(put(one(doc("b", "other text"))).status, JobStatus::kFailed);
  EXPECT_EQ(faulty_->durable_job_changes() - before, 4);
}

TEST_F(RestartTest, ARepeatedItemDoesNotReplaceALaterVersion) {
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "first")), {});
  engine_->wait_for_one();
  const auto saved = records();
  engine_->open();
  wait(job);
  put(one(doc("a", "second")));
  crash_to(saved);
  wait_id(job->id);
  EXPECT_EQ(*service_->documents().content("default", "a"), "second");
}

TEST_F(RestartTest, ARepeatedItemDoesNotSetMetadataBackToThatOfAnEarlierPost) {
  put(one(doc("a", "text", R"({"v":0})")));
  engine_->close();
  std::vector<DocumentInput> batch;  // its end is not saved while the second document is at work
  batch.push_back(doc("a", "text", R"({"v":1})"));
  batch.push_back(doc("b", "other"));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  EXPECT_EQ(put(one(doc("a", "text", R"({"v":2})"))).status, JobStatus::kSucceeded);
  crash_to(records());
  wait_id(job->id);
  EXPECT_EQ(service_->documents().get("default", "a")->metadata_json, R"({"v":2})");
}

TEST_F(RestartTest, DocumentsWaitForTheNextStartOnceTheDeviceIsLost) {
  service_->stop();
  options_.max_documents_in_flight = 1;
  make_service();
  engine_->fail_at(0, Status(Code::kDeviceLost, "the device is gone"));
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 3; ++i)
    batch.push_back(doc("d" + std::to_string(i), "text " + std::to_string(i)));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  ASSERT_TRUE(testing::soon([&] {
    const IngestStats s = service_->stats();
    return s.documents_in_flight == 0 && s.documents_waiting == 3;
  }));
  ASSERT_OK(service_->submit("default", one(doc("late", "text")), {}));
  EXPECT_EQ(service_->stats().documents_waiting, 4) << "nothing more is begun";
  EXPECT_EQ(engine_->prefills(), 0);
  shut();
  open();
  const JobSnapshot end = wait_id(job->id);
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  EXPECT_EQ(end.counts.completed, 3);
}

TEST_F(RestartTest, APinStaysWhenAnUnchangedPostIsRepeated) {
  EXPECT_EQ(put(one(doc("a", "text"))).status, JobStatus::kSucceeded);
  // Of the second post of the same text everything is written but the record that it has ended.
  const auto written = [&] {
    for (int n = 1;; ++n) {
      faulty_->fail_at(n, Status::io("injected"));
      const auto job = service_->submit("default", one(doc("a", "text")), {});
      if (job.ok() && wait(job).status == JobStatus::kSucceeded && faulty_->failed()) return true;
      if (n == 10) return false;
    }
  };
  ASSERT_TRUE(written()) << "no fault hit the record of a job that had ended";
  DocumentPatch pin;
  pin.pinned = true;
  ASSERT_OK(service_->documents().patch("default", "a", pin));
  crash_to(records());  // the pin was on disk, and so is what came before it
  std::promise<void> settled;
  const std::vector<std::string> ids = {"a"};
  const Subscription s = service_->jobs().when_synchronized("default", ids,
                                                            [&] { settled.set_value(); });
  settled.get_future().get();
  EXPECT_TRUE(service_->documents().get("default", "a")->pinned);
}

TEST_F(RestartTest, ADocumentThatIsBeingReplacedCannotBeChanged) {
  put(one(doc("a", "first")));
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "second")), {});
  engine_->wait_for_one();
  DocumentPatch pin;
  pin.pinned = true;
  const auto refused = service_->documents().patch("default", "a", pin);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find(job->id), std::string::npos)
      << refused.status().message();
  engine_->open();
  wait(job);
  ASSERT_OK(service_->documents().patch("default", "a", pin));
  EXPECT_TRUE(service_->documents().get("default", "a")->pinned);
}

TEST_F(RestartTest, ADeletedDocumentStaysDeleted) {
  service_->stop();
  // One document at a time makes "done" reach the gate before "working".
  options_.max_documents_in_flight = 1;
  make_service();
  engine_->close();
  std::vector<DocumentInput> batch;
  batch.push_back(doc("done", "text one"));
  batch.push_back(doc("working", "text two"));
  engine_->permit(1);
  const auto job = service_->submit("default", std::move(batch), {});
  engine_->wait_for_one();
  ASSERT_OK(service_->documents().remove("default", "working"));
  const std::vector<std::string> ids = {"done"};
  std::promise<void> settled;
  const auto s = service_->jobs().when_synchronized("default", ids, [&] { settled.set_value(); });
  settled.get_future().get();
  ASSERT_OK(service_->documents().remove("default", "done"));
  crash_to(records());  // every deletion was on disk at once
  wait_id(job->id);
  EXPECT_EQ(service_->documents().get("default", "done").code(), Code::kNotFound);
  EXPECT_EQ(service_->documents().get("default", "working").code(), Code::kNotFound);
}

TEST_F(RestartTest, AnUnsavedOlderVersionDoesNotFollowADelete) {
  // Input, job, segment and document are written, but the record that says "finished" is not.
  faulty_->fail_at(4, Status::io("injected"));
  EXPECT_EQ(put(one(doc("a", "older"))).status, JobStatus::kSucceeded);
  ASSERT_TRUE(faulty_->failed());
  std::vector<NamedRecord> saved;
  EXPECT_EQ(put(one(doc("a", "newer"))).status, JobStatus::kSucceeded);
  faulty_->on_deleted([&] { saved = records(); });
  ASSERT_OK(service_->documents().remove("default", "a"));
  ASSERT_FALSE(saved.empty());
  crash_to(saved);
  std::promise<void> settled;
  const std::vector<std::string> ids = {"a"};
  const Subscription s = service_->jobs().when_synchronized("default", ids,
                                                            [&] { settled.set_value(); });
  settled.get_future().get();
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
}

TEST_F(RestartTest, ADeletionThatIsCutShortBringsNoOlderVersionBack) {
  engine_->close();
  std::vector<DocumentInput> batch;
  batch.push_back(doc("a", "older"));
  batch.push_back(doc("b", "other"));
  const auto older = service_->submit("default", std::move(batch), {});
  ASSERT_OK(older);
  engine_->wait_for_one();
  const auto newer = service_->submit("default", one(doc("a", "newer")), {});
  ASSERT_OK(newer);
  std::vector<NamedRecord> saved;  // after the first of the two jobs was saved
  faulty_->on_job_saved([&] {
    if (saved.empty()) saved = records();
  });
  ASSERT_OK(service_->documents().remove("default", "a"));
  faulty_->on_job_saved({});
  ASSERT_FALSE(saved.empty());
  crash_to(saved);
  wait_id(older->id);
  wait_id(newer->id);
  const auto text = service_->documents().content("default", "a");
  EXPECT_TRUE(!text.ok() || *text == "newer") << *text;
}

TEST_F(RestartTest, ADeletionDuringACommitEndsTheJobAsItWas) {
  std::vector<NamedRecord> saved;
  faulty_->on_deleted([&] { saved = records(); });
  std::jthread deleting;
  faulty_->before_commit = [&] {
    if (deleting.joinable()) return;
    deleting = std::jthread([&] { EXPECT_OK(service_->documents().remove("default", "a")); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it now waits for the commit
  };
  const auto job = service_->submit("default", one(doc("a", "text")), {});
  ASSERT_OK(job);
  EXPECT_EQ(wait(job).status, JobStatus::kSucceeded);
  deleting.join();
  ASSERT_FALSE(saved.empty());
  crash_to(saved);
  EXPECT_EQ(wait_id(job->id).status, JobStatus::kSucceeded);
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
}

TEST_F(RestartTest, ARefusedPostIsNotFoundOnDiskLater) {
  faulty_->write_failed_jobs = true;
  const auto refuse = [&](std::string id) {
    // Its input is written. The record of the job is on disk, too, and stays there with the input.
    faulty_->fail_at(1, Status::io("injected"), 3);
    const auto refused = service_->submit("default", one(doc(std::move(id), "refused")), {});
    EXPECT_EQ(refused.code(), Code::kIo);
  };
  ASSERT_EQ(put(one(doc("deleted", "text"))).status, JobStatus::kSucceeded);
  ASSERT_EQ(put(one(doc("kept", "text"))).status, JobStatus::kSucceeded);
  refuse("deleted");
  ASSERT_FALSE(store_->list_jobs("input/", 1)->empty()) << "or this shows nothing";
  ASSERT_OK(service_->documents().remove("default", "deleted"));
  refuse("kept");
  EXPECT_EQ(put(one(doc("kept", "text"))).results[0].result, ItemResult::kUnchanged);
  refuse("kept");
  faulty_->fail_at(0, Status::io("injected"));
  EXPECT_EQ(service_->submit("default", one(doc("other", "text")), {}).code(), Code::kIo)
      << "the refused job comes first";
  EXPECT_EQ(service_->documents().patch("default", "kept", {.title = "T"}).code(), Code::kOk);
  crash_to(records());
  const auto jobs = service_->jobs().list_jobs("default", {});
  ASSERT_OK(jobs);
  for (const JobSnapshot& job : jobs->jobs) wait_id(job.id);
  EXPECT_EQ(service_->documents().get("default", "deleted").code(), Code::kNotFound);
  EXPECT_EQ(*service_->documents().content("default", "kept"), "text");
  EXPECT_EQ(service_->documents().get("default", "kept")->title, "T");
}

TEST_F(RestartTest, ARefusedPostStandsInNobodysWayOnAFullDisk) {
  faulty_->fail_at(0, Status::exhausted("full"), 1);  // its input: nothing asked for the job
  EXPECT_EQ(service_->submit("default", one(doc("a", "text")), {}).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(service_->stats().jobs_refused, 0);
  faulty_->write_failed_jobs = true;
  faulty_->fail_at(1, Status::exhausted("full"), 3);
  EXPECT_EQ(service_->submit("default", one(doc("a", "text")), {}).code(),
            Code::kResourceExhausted);
  EXPECT_EQ(service_->stats().jobs_refused, 1);
  faulty_->write_failed_jobs = false;
  faulty_->fail_at(0, Status::exhausted("full"), 1);  // there is no room to write it as cancelled
  EXPECT_EQ(put(one(doc("b", "text"))).status, JobStatus::kSucceeded);
  EXPECT_EQ(service_->stats().jobs_refused, 0);
  crash_to(records());
  EXPECT_EQ(service_->jobs().list_jobs("default", {})->jobs.size(), 1u);
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
}

TEST_F(RestartTest, AFailedItemIsNotRepeatedOverWhatALaterPostFound) {
  for (const IfExists if_exists : {IfExists::kUpsert, IfExists::kSkip}) {
    ASSERT_EQ(put(one(doc("a", "text"))).status, JobStatus::kSucceeded);
    engine_->close();
    const auto job = service_->submit("default", one(doc("a", "other")), {});
    ASSERT_OK(job);
    engine_->wait_for_one();
    engine_->fail_at(0, Status::internal("injected"));
    faulty_->fail_at(0, Status::io("injected"));  // the record that says so
    engine_->open();
    ASSERT_EQ(wait(job).status, JobStatus::kFailed);
    ASSERT_TRUE(faulty_->failed());
    BatchOptions options;
    options.if_exists = if_exists;
    ASSERT_EQ(put(one(doc("a", "text")), options).status, JobStatus::kSucceeded);
    crash_to(records());
    wait_id(job->id);
    EXPECT_EQ(*service_->documents().content("default", "a"), "text");
  }
}

TEST_F(RestartTest, WhatAJobDidIsSavedBeforeAChangePastTheCatalog) {
  engine_->close();
  const auto job = service_->submit("default", one(doc("a", "text")), {});
  ASSERT_OK(job);
  engine_->wait_for_one();
  engine_->fail_at(0, Status::internal("injected"));
  faulty_->fail_at(1, Status::io("injected"));  // after the failed document, the record of the job
  engine_->open();
  wait(job);
  faulty_->fail_at(0, Status::io("injected"));
  EXPECT_EQ(service_->documents().settle("default", "a").code(), Code::kIo);
  EXPECT_OK(service_->documents().settle("default", "a"));
  EXPECT_EQ(store_->list_jobs("input/", 1)->front().name.substr(0, 4), "job/")
      << "its input goes with that";
  const auto saved = records();
  EXPECT_OK(service_->documents().settle("default", "a"));
  crash_to(saved);
  EXPECT_EQ(wait_id(job->id).status, JobStatus::kFailed) << "it is not repeated";
}

TEST_F(RestartTest, ACancelledJobStaysCancelled) {
  engine_->close();
  std::vector<DocumentInput> batch;
  for (int i = 0; i < 3; ++i) batch.push_back(doc("d" + std::to_string(i), "text"));
  const auto job = service_->submit("default", std::move(batch), {});
  engine_->wait_for_one();
  ASSERT_OK(service_->jobs().cancel_job("default", job->id));
  crash_to(records());
  const JobSnapshot end = wait_id(job->id);
  EXPECT_EQ(end.status, JobStatus::kCancelled);
  EXPECT_EQ(end.counts.cancelled, 3);
  EXPECT_EQ(service_->documents().counts("default")->total, 0u);
}

TEST_F(RestartTest, InputsWithoutAJobAreDropped) {
  DocumentInput d = doc("a", "text");
  const std::string lost = "job_00000000000000000000000000";
  const NamedText text{input_text_name(lost, 0), "text"};
  ASSERT_OK(
      store_->put_job_and_texts(input_record_name(lost, 0), encode_inputs({{0, &d}}), {&text, 1}));
  ASSERT_OK(store_->put_job(job_record_name("job_00000000000000000000000001"), "garbage"));
  crash_to(records());
  EXPECT_EQ(store_->get_job(input_record_name("job_00000000000000000000000000", 0)).code(),
            Code::kNotFound);
  EXPECT_TRUE(store_->list_waiting_texts()->empty());
  EXPECT_EQ(put(one(doc("b", "fine"))).status, JobStatus::kSucceeded)
      << "a damaged record does not stop the service";
}

TEST_F(RestartTest, ATextWaitsForItsDocumentAndIsWrittenOnce) {
  engine_->close();
  std::vector<DocumentInput> batch;
  batch.push_back(doc("a", "a text of its own"));
  DocumentInput chunks;
  chunks.id = "b";
  chunks.chunks = {"one chunk", "another"};
  batch.push_back(std::move(chunks));
  const auto job = service_->submit("default", std::move(batch), {});
  ASSERT_OK(job);
  EXPECT_EQ(store_->list_waiting_texts()->size(), 2u);
  const auto saved = store_->list_jobs();
  for (const NamedRecord& r : *saved) {
    EXPECT_EQ(r.value.find("of its own"), r.value.npos);
    EXPECT_EQ(r.value.find("another"), r.value.npos);
  }
  EXPECT_EQ(*service_->documents().content("default", "a"), "a text of its own");
  EXPECT_EQ(service_->documents().get("default", "b")->bytes, 18u);
  shut();  // a restart finds them again
  open();
  EXPECT_EQ(wait_id(job->id).status, JobStatus::kSucceeded);
  EXPECT_TRUE(store_->list_waiting_texts()->empty());
  EXPECT_EQ(*service_->documents().content("default", "a"), "a text of its own");
  EXPECT_EQ(*service_->documents().content("default", "b"), "one chunk\n\nanother");
  EXPECT_EQ(service_->documents().chunks("default", "b")->size(), 2u);
  // What a job does not need goes too: of an unchanged document, and of a refused one.
  EXPECT_EQ(put(one(doc("a", "a text of its own"))).results[0].result, ItemResult::kUnchanged);
  BatchOptions only_new;
  only_new.if_exists = IfExists::kError;
  EXPECT_EQ(put(one(doc("a", "another text")), only_new).status, JobStatus::kFailed);
  EXPECT_TRUE(store_->list_waiting_texts()->empty());
  EXPECT_EQ(*service_->documents().content("default", "a"), "a text of its own");
}

TEST_F(RestartTest, OnlySoManyFinishedJobsAreKept) {
  service_->stop();
  options_.max_finished_jobs = 3;
  make_service();
  std::vector<std::string> jobs;
  for (int i = 0; i < 5; ++i) jobs.push_back(put(one(doc("d" + std::to_string(i), "text"))).id);
  ASSERT_OK(service_->run_maintenance());
  for (std::size_t i = 0; i < jobs.size(); ++i)
    EXPECT_EQ(service_->jobs().job("default", jobs[i]).ok(), i >= 2) << i;
  EXPECT_EQ(store_->list_jobs()->size(), 3u);
}

TEST_F(RestartTest, FinishedJobsAreToldUntilTheRetentionIsOver) {
  std::vector<DocumentInput> batch;
  batch.push_back(doc("a", "text"));
  batch.push_back(doc("b", ""));
  const JobSnapshot job = put(std::move(batch));
  shut();
  open();
  auto again = service_->jobs().job("default", job.id);
  ASSERT_OK(again);
  EXPECT_EQ(again->status, JobStatus::kPartial);
  ASSERT_EQ(again->results.size(), 2u);
  EXPECT_EQ(again->results[1].error->code, "empty_document");
  EXPECT_EQ(again->usage.tokens, job.usage.tokens);
  EXPECT_EQ(service_->jobs().list_jobs("default", {})->jobs[0].counts.failed, 1);
  clock_ms_ += options_.job_retention_ms + 1;
  ASSERT_OK(service_->run_maintenance());
  EXPECT_EQ(service_->jobs().job("default", job.id).code(), Code::kNotFound);
  EXPECT_TRUE(store_->list_jobs()->empty());
}

TEST_F(RestartTest, AnotherModelMakesDocumentsStaleUntilWarmed) {
  put(one(doc("a", prose(300, 1), "", "Title")));
  shut();
  open("m-00000002");
  EXPECT_EQ(service_->documents().get("default", "a")->cache.state, "stale");
  const std::vector<std::string> ids = {"a"};
  const auto resolved = service_->resolve("default", ids, {});
  ASSERT_OK(resolved);
  EXPECT_TRUE(resolved->documents[0].stale);
  EXPECT_FALSE(resolved->documents[0].contexts.empty());
  const JobSnapshot job = wait(service_->warm("default", "a"));
  EXPECT_EQ(job.results[0].result, ItemResult::kWarmed);
  EXPECT_EQ(service_->documents().get("default", "a")->cache.state, "resident");
  EXPECT_EQ(*service_->documents().content("default", "a"), prose(300, 1));
  EXPECT_FALSE(service_->resolve("default", ids, {})->documents[0].stale);
}

TEST_F(RestartTest, KvThatIsMadeAnewMovesNoEnd) {
  BatchOptions o;
  o.ttl_seconds = 100;
  put(one(doc("a", prose(300, 1), "", "Title")), o);
  const auto ends = service_->documents().get("default", "a")->expires_at_ms;
  ASSERT_TRUE(ends);
  shut();
  open("m-00000002");
  clock_ms_ += 60'000;
  EXPECT_EQ(wait(service_->warm("default", "a")).results[0].result, ItemResult::kWarmed);
  const auto warmed = service_->documents().get("default", "a");
  ASSERT_OK(warmed);
  EXPECT_EQ(warmed->version, 2u);
  EXPECT_EQ(warmed->expires_at_ms, ends);
  put(one(doc("a", prose(300, 2), "", "Title")), o);
  EXPECT_EQ(service_->documents().get("default", "a")->expires_at_ms, clock_ms_ + 100'000)
      << "a new text lives as long as the first did";
}

/// A document of another model. While it is read, its title changes `changes_` times, or it is
/// deleted.
class ChangingDocumentTest : public RestartTest {
 protected:
  void SetUp() override {
    RestartTest::SetUp();
    put(one(doc("a", prose(300, 1), "", "Title")));
    shut();
    open("m-00000002");
    faulty_->on_read_head([this] {
      if (deletes_.exchange(false)) {
        EXPECT_OK(store_->delete_document("default", "a", {}));
      }
      if (changes_ <= 0) return;
      --changes_;
      const auto retitle = [this](DocumentManifest& m) {
        m.title = "Title with " + std::to_string(changes_) + " to come";
        return Status();
      };
      EXPECT_OK(store_->update_document("default", "a", retitle, {}));
    });
  }
  void TearDown() override { shut(); }

  std::atomic<int> changes_{0};
  std::atomic<bool> deletes_{false};
  const std::vector<std::string> ids_ = {"a"};
};

TEST_F(ChangingDocumentTest, AStaleDocumentIsReadInOneVersion) {
  changes_ = 2;
  const auto resolved = service_->resolve("default", ids_, {});
  ASSERT_OK(resolved);
  const ResolvedDocument& d = resolved->documents.at(0);
  const auto stored = store_->get_document("default", "a");
  ASSERT_OK(stored);
  EXPECT_TRUE(d.stale);
  EXPECT_EQ(d.title, "Title with 0 to come");
  EXPECT_EQ(d.version, stored->version);
  EXPECT_EQ(d.contexts.at(0).title, d.title);
}

TEST_F(ChangingDocumentTest, OneThatChangesAllTheTimeIsToBeAskedForLater) {
  changes_ = 1000;
  EXPECT_EQ(service_->resolve("default", ids_, {}).code(), Code::kUnavailable);
  changes_ = 0;
  ASSERT_OK(service_->resolve("default", ids_, {}));
}

TEST_F(ChangingDocumentTest, OneThatIsDeletedMeanwhileIsMissing) {
  deletes_ = true;
  const auto resolved = service_->resolve("default", ids_, {});
  ASSERT_OK(resolved);
  EXPECT_EQ(resolved->missing, ids_);
}

}  // namespace
}  // namespace quire
