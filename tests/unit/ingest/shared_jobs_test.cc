// Document services over one shared catalog in memory: jobs of one that is gone go on at another,
// and nothing is done twice.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/store_impl.h"
#include "ingest/document/job_record.h"
#include "tests/support/faulty_store.h"
#include "tests/support/harness/ingest_node.h"
#include "tests/support/soon.h"

namespace quire {
namespace {

using namespace test;
using testing::soon;

struct SharedJobsTest : ::testing::Test {
  std::shared_ptr<MemoryDatabase> database = std::make_shared<MemoryDatabase>();
  Node a{database}, b{database};
};

TEST_F(SharedJobsTest, AnyReplicaTellsOfAJobAndItsEnd) {
  a.engine->close();
  const std::string id = a.submit(3);
  const auto running = b.service->jobs().job("default", id);
  ASSERT_OK(running);
  EXPECT_EQ(running->counts.total, 3);
  EXPECT_FALSE(running->finished());
  EXPECT_EQ(b.service->jobs().job("another", id).code(), Code::kNotFound);
  EXPECT_EQ(b.service->jobs().job("default", "job_none").code(), Code::kNotFound);
  a.engine->open();
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
  const JobSnapshot end = b.end_of(id);
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  ASSERT_EQ(end.results.size(), 3u);
  EXPECT_EQ(end.results[2].result, ItemResult::kCreated);
  EXPECT_EQ(end.results[2].tokens, a.end_of(id).results[2].tokens);
  const auto row = database->jobs.all().at(id);
  EXPECT_TRUE(row.job.ended);
  EXPECT_TRUE(row.parts.empty()) << "texts stay no longer than the job";
  EXPECT_TRUE(row.items.empty());
}

TEST_F(SharedJobsTest, OthersSeeThatAJobRunsAndWhatOfItIsDone) {
  a.engine->close();
  const std::string id = a.submit(3);
  a.engine->wait_for_one();
  ASSERT_OK(a.tend());
  const auto running = b.service->jobs().job("default", id);
  ASSERT_OK(running);
  EXPECT_EQ(running->status, JobStatus::kRunning);
  a.engine->permit(1);
  ASSERT_TRUE(soon([&] { return database->jobs.all().at(id).items.size() == 1; }));
  const auto further = b.service->jobs().job("default", id);
  ASSERT_OK(further);
  EXPECT_EQ(further->counts.completed, 1);
  a.engine->open();
  EXPECT_EQ(a.end_of(id).counts.completed, 3);
}

TEST_F(SharedJobsTest, ListsSayOfJobsElsewhereWhatIsDoneBeforeTheirRecordDoes) {
  a.engine->close();
  a.engine->permit(1);
  const std::string id = a.submit(3);
  ASSERT_TRUE(soon([&] { return database->jobs.all().at(id).items.size() == 1; }));
  const auto page = b.service->jobs().list_jobs("default", {});
  ASSERT_OK(page);
  ASSERT_EQ(page->jobs.size(), 1u);
  const JobSnapshot& listed = page->jobs[0];
  EXPECT_EQ(listed.status, JobStatus::kRunning);
  EXPECT_EQ(listed.counts.completed, 1);
  EXPECT_GT(listed.progress.tokens_done, 0);
  const auto alone = b.service->jobs().job("default", id);
  ASSERT_OK(alone);
  EXPECT_EQ(alone->counts.completed, 1);
  EXPECT_EQ(alone->status, JobStatus::kRunning);
  EXPECT_TRUE(listed.results.empty());
}

TEST_F(SharedJobsTest, AJobWhoseEndTheOthersDoNotKnowIsKept) {
  a.close();
  a.options.max_finished_jobs = 0;
  a.open();
  a.engine->close();
  const std::string id = a.submit(1);
  a.engine->wait_for_one();
  std::promise<void> ended;
  const auto listening = a.service->jobs().subscribe("default", id,
                                                     [&](JobEvent event, const JobSnapshot&) {
                                                       if (event == JobEvent::kDone)
                                                         ended.set_value();
                                                     });
  ASSERT_OK(listening);
  database->set_fault([](std::string_view operation) {
    return operation == "jobs" ? catalog_away("jobs are away") : Status();
  });
  a.engine->open();
  ended.get_future().wait();
  ASSERT_OK(a.tend());
  const auto kept = a.service->jobs().job("default", id);
  ASSERT_OK(kept);
  EXPECT_TRUE(kept->finished());
  database->set_fault({});
  EXPECT_TRUE(soon([&] { return a.tend().ok() && database->jobs.all().at(id).job.ended; }));
  EXPECT_EQ(a.service->stats().documents_ready, 1) << "it was not done again";
}

TEST_F(SharedJobsTest, ADocumentThatAnotherReplicaWorksOnIsTheSameEverywhere) {
  a.engine->close();
  const std::string id = a.submit(2);
  const auto waits = b.service->documents().get("default", "d1");
  ASSERT_OK(waits);
  EXPECT_EQ(waits->job_id, id);
  EXPECT_TRUE(waits->progress.has_value());
  EXPECT_NE(waits->status, DocumentStatus::kReady);
  const auto resolved = b.service->resolve("default", std::vector<std::string>{"d1", "d"}, {});
  ASSERT_OK(resolved);
  ASSERT_EQ(resolved->not_ready.size(), 1u);
  EXPECT_EQ(resolved->not_ready[0].job_id, id);
  EXPECT_EQ(resolved->missing, std::vector<std::string>{"d"}) << "a part of an id is none";
  EXPECT_EQ(b.service->documents().get("another", "d1").code(), Code::kNotFound);
  database->away = true;
  EXPECT_TRUE(catalog_is_away(b.service->documents().get("default", "d1").status()))
      << "nobody can say whether it is there";
  database->away = false;
  a.engine->open();
  a.end_of(id);
  const auto there = b.service->documents().get("default", "d1");
  ASSERT_OK(there);
  EXPECT_EQ(there->status, DocumentStatus::kReady);
  EXPECT_FALSE(there->progress.has_value());
}

TEST_F(SharedJobsTest, WhatAReplicaHasAcknowledgedIsThereAtEveryOtherAtOnce) {
  database->unseen = true;
  const std::string id = a.submit(4);
  a.end_of(id);
  EXPECT_EQ(b.version("d0"), 0u);
  EXPECT_OK(b.service->documents().get("default", "d0"));
  EXPECT_EQ(b.content("d1"), "text 1");
  EXPECT_OK(b.service->documents().chunks("default", "d2"));
  const auto resolved = b.service->resolve("default", std::vector<std::string>{"d3"}, {});
  ASSERT_OK(resolved);
  EXPECT_EQ(resolved->documents.size(), 1u);
  database->unseen = false;
}

TEST_F(SharedJobsTest, ListsHaveTheJobsOfAllReplicasInOrder) {
  const std::string first = a.submit(1, "x"), second = b.submit(1, "y"), third = a.submit(1, "z");
  a.end_of(first), b.end_of(second), a.end_of(third);
  ASSERT_TRUE(soon([&] {
    JobListOptions done;
    done.status = JobStatus::kSucceeded;
    return b.service->jobs().list_jobs("default", done)->jobs.size() == 3;
  }));
  JobListOptions options;
  options.limit = 2;
  options.descending = false;
  const auto page = b.service->jobs().list_jobs("default", options);
  ASSERT_OK(page);
  ASSERT_EQ(page->jobs.size(), 2u);
  EXPECT_TRUE(page->has_more);
  options.after = page->jobs[1].id;
  const auto rest = a.service->jobs().list_jobs("default", options);
  ASSERT_OK(rest);
  ASSERT_EQ(rest->jobs.size(), 1u);
  EXPECT_FALSE(rest->has_more);
  EXPECT_LT(page->jobs[0].id, page->jobs[1].id);
  EXPECT_LT(page->jobs[1].id, rest->jobs[0].id);
  EXPECT_TRUE(a.service->jobs().list_jobs("another", {})->jobs.empty());
}

TEST_F(SharedJobsTest, AJobOfAReplicaThatIsGoneGoesOnElsewhereFromWhereItWas) {
  a.engine->close();
  a.engine->permit(2);
  const std::string id = a.submit(5);
  ASSERT_TRUE(soon([&] { return database->jobs.all().at(id).items.size() == 2; }));
  ASSERT_TRUE(soon([&] { return b.version("d1") == 1 || b.version("d0") == 1; }));
  database->jobs.forget_replicas();  // a hangs
  ASSERT_OK(b.tend());
  const JobSnapshot end = b.end_of(id);
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  EXPECT_EQ(end.counts.completed, 5);
  for (const JobItem& item : end.results) EXPECT_EQ(item.result, ItemResult::kCreated) << item.id;
  EXPECT_EQ(b.engine->prefills(), 3) << "two documents had been committed";
  // What the one that hung goes on with is not seen.
  a.engine->open();
  const JobSnapshot there = a.end_of(id);
  EXPECT_EQ(there.status, JobStatus::kSucceeded);
  for (int i = 0; i < 5; ++i) {
    const std::string name = "d" + std::to_string(i);
    EXPECT_TRUE(soon([&] { return a.version(name) == 1 && b.version(name) == 1; })) << name;
    EXPECT_EQ(b.content(name), "text " + std::to_string(i));
  }
  ASSERT_OK(a.tend());
  EXPECT_TRUE(soon([&] {
    (void)a.tend();
    return a.store->list_jobs("input/", 1)->empty() ||
           !a.store->list_jobs("input/", 1)->front().name.starts_with("input/");
  })) << "nothing of it is left there";
  EXPECT_EQ(a.service->stats().documents_in_flight, 0);
  EXPECT_EQ(a.service->stats().documents_waiting, 0);
}

TEST_F(SharedJobsTest, AReplicaIsHeardOfWhileItsUpkeepTakesLong) {
  BatchOptions short_lived;
  short_lived.ttl_seconds = 30;
  const auto job = b.service->submit("default", one(doc("d0", "text")), short_lived);
  ASSERT_OK(job);
  b.end_of(job->id);
  a.close();
  a.options.clock_ms = [] { return IngestOptions().now_ms() + 60'000; };
  a.options.maintenance_interval_ms = 10;
  std::promise<void> go;
  const auto going = go.get_future().share();
  std::atomic<bool> waits{false};
  database->set_fault([&](std::string_view operation) {
    if (operation == "remove" && !waits.exchange(true)) going.wait();
    return Status();
  });
  a.open();
  ASSERT_TRUE(soon([&] { return waits.load(); })) << "its upkeep deletes what has run out";
  database->jobs.forget_replicas();
  EXPECT_TRUE(soon([&] {
    const std::lock_guard lock(database->jobs.mu);
    return database->jobs.alive.contains(a.store->shared_jobs()->replica());
  }));
  go.set_value();
  database->set_fault({});
  a.close();
}

TEST_F(SharedJobsTest, AJobThatComesBackWhileItsRecordsGoIsWholeAgain) {
  StoreOptions options;
  options.catalog.poll = a.poll;
  options.catalog.job_lease = std::chrono::milliseconds(0);
  auto opened = open_store_on(options, std::make_unique<MemoryTier>(std::make_shared<MemoryDisk>()),
                              {}, std::make_unique<MemoryCatalog>(database));
  ASSERT_OK(opened);
  std::unique_ptr<Store> inner = std::move(*opened);
  FaultyStore store(inner);
  store.set_catalog(true);
  FakeEngine engine(store, "m-00000001");
  IngestOptions ingest;
  ingest.maintenance_interval_ms = 0;
  ingest.max_documents_in_flight = 1;
  auto made = create_ingest_service(ingest, store, engine);
  ASSERT_OK(made);
  IngestService& c = **made;
  // A commit holds the job until it is lost, and so its records until all has been told.
  std::promise<void> go;
  std::atomic<int> commits{0};
  store.before_commit = [&, gone = go.get_future().share()] {
    if (commits++ == 0) gone.wait();
  };
  std::atomic<bool> comes_back{false}, came_back{false};
  store.before_texts_deleted = [&] {
    if (!comes_back.exchange(false)) return;
    database->jobs.forget_replicas();
    engine.close();
    EXPECT_OK(c.run_maintenance());
    came_back = true;
  };
  ASSERT_OK(c.start());

  b.engine->close();
  const auto job = c.submit("default", {doc("d0", "zero"), doc("d1", "one"), doc("d2", "two")}, {});
  ASSERT_OK(job);
  ASSERT_TRUE(soon([&] { return commits == 1; }));
  database->jobs.forget_replicas();
  ASSERT_OK(b.tend());
  ASSERT_OK(c.run_maintenance());
  comes_back = true;
  go.set_value();
  ASSERT_TRUE(soon([&] { return came_back.load(); }));
  engine.open();
  JobSnapshot end;
  EXPECT_TRUE(soon([&] {
    (void)c.run_maintenance();
    const auto now = c.jobs().job("default", job->id);
    if (now.ok()) end = *now;
    return end.finished();
  }));
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  EXPECT_EQ(end.counts.completed, 3);
  c.stop();
}

TEST_F(SharedJobsTest, ACommitOfAJobThatWasTakenOverIsRefusedAtTheLastMoment) {
  a.engine->close();
  const std::string id = a.submit(1);
  a.engine->wait_for_one();
  database->jobs.forget_replicas();
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.end_of(id).status, JobStatus::kSucceeded);
  ASSERT_OK(b.service->documents().patch("default", "d0", {.metadata_json = R"({"by":"b"})"}));
  a.engine->open();  // it has not heard of anything
  EXPECT_TRUE(soon([&] { return a.service->stats().documents_in_flight == 0; }));
  EXPECT_TRUE(soon([&] { return a.version("d0") == b.version("d0"); }));
  EXPECT_EQ(b.service->documents().get("default", "d0")->metadata_json, R"({"by":"b"})");
  EXPECT_EQ(b.version("d0"), 2u) << "posted once and patched once";
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
}

TEST_F(SharedJobsTest, ADocumentThatWasDeletedMeanwhileDoesNotComeBack) {
  a.engine->close();
  a.engine->permit(1);
  const std::string id = a.submit(2);
  ASSERT_TRUE(soon([&] { return database->jobs.all().at(id).items.size() == 1; }));
  const std::uint64_t done = database->jobs.all().at(id).items.begin()->first;
  const std::string name = "d" + std::to_string(done);
  ASSERT_TRUE(soon([&] { return b.version(name) == 1; }));
  ASSERT_OK(b.service->documents().remove("default", name));
  database->jobs.forget_replicas();
  ASSERT_OK(b.tend());
  const JobSnapshot end = b.end_of(id);
  EXPECT_EQ(end.status, JobStatus::kSucceeded);
  EXPECT_EQ(b.version(name), 0u);
  a.engine->open();
  a.end_of(id);
  EXPECT_TRUE(soon([&] { return a.version(name) == 0; }));
}

TEST_F(SharedJobsTest, ARestartKeepsItsJobsAndThoseTakenMeanwhileStayAway) {
  a.engine->close();
  const std::string kept = a.submit(2, "k"), taken = a.submit(2, "t");
  a.engine->wait_for_one();
  a.close();  // a stop leaves them to the others
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.end_of(kept).status, JobStatus::kSucceeded);
  EXPECT_EQ(b.end_of(taken).status, JobStatus::kSucceeded);
  a.open();
  EXPECT_EQ(a.end_of(kept).status, JobStatus::kSucceeded);
  EXPECT_EQ(a.engine->prefills(), 0) << "b has done it all";
  EXPECT_EQ(a.version("k0"), 1u);
}

TEST_F(SharedJobsTest, ARestartBeforeAnybodyElseNoticesGoesOn) {
  a.engine->close();
  const std::string id = a.submit(2);
  a.engine->wait_for_one();
  a.close();
  a.open();
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_EQ(a.engine->prefills(), 2);
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.engine->prefills(), 0);
  EXPECT_EQ(b.end_of(id).counts.completed, 2);
}

TEST_F(SharedJobsTest, AJobIsCancelledFromAnotherReplica) {
  a.engine->close();
  const std::string id = a.submit(4);
  a.engine->wait_for_one();
  std::atomic<bool> over{false};
  std::thread tending([&] {
    while (!over) {
      (void)a.tend();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  const auto cancelled = b.service->jobs().cancel_job("default", id);
  ASSERT_OK(cancelled);
  EXPECT_EQ(cancelled->status, JobStatus::kCancelled);
  EXPECT_EQ(cancelled->counts.cancelled, 4);
  over = true;
  tending.join();
  EXPECT_EQ(b.service->jobs().cancel_job("default", "job_none").code(), Code::kNotFound);
  EXPECT_EQ(b.service->jobs().cancel_job("another", id).code(), Code::kNotFound);
}

TEST_F(SharedJobsTest, ACancelledJobStaysCancelledWhereItsReplicaDies) {
  a.engine->close();
  const std::string id = a.submit(2);
  a.engine->wait_for_one();
  database->away = true;
  EXPECT_TRUE(catalog_is_away(a.service->jobs().cancel_job("default", id).status()));
  EXPECT_FALSE(a.service->jobs().job("default", id)->finished()) << "nothing was cancelled";
  database->away = false;
  ASSERT_OK(a.service->jobs().cancel_job("default", id));
  database->jobs.forget_replicas();  // a hangs at the first document
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.end_of(id).status, JobStatus::kCancelled);
  EXPECT_EQ(b.engine->prefills(), 0);
  a.engine->open();
  EXPECT_EQ(a.end_of(id).status, JobStatus::kCancelled);
  EXPECT_EQ(b.version("d0") + b.version("d1"), 0u);
}

TEST_F(SharedJobsTest, AListenerHearsOfAJobElsewhereAndAlsoOnceItCameHere) {
  a.engine->close();
  const std::string id = a.submit(2);
  a.engine->wait_for_one();
  std::atomic<int> progress{0}, done{0};
  const auto listening = b.service->jobs().subscribe(
      "default", id,
      [&](JobEvent event, const JobSnapshot&) { ++(event == JobEvent::kDone ? done : progress); });
  ASSERT_OK(listening);
  ASSERT_OK(b.tend());
  EXPECT_GT(progress, 0);
  database->jobs.forget_replicas();
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_TRUE(soon([&] {
    (void)b.tend();
    return done == 1;
  }));
  a.engine->open();
}

TEST_F(SharedJobsTest, WhileTheCatalogIsAwayNothingIsTakenAndNothingIsLost) {
  a.engine->close();
  const std::string id = a.submit(2);
  a.engine->wait_for_one();
  database->away = true;
  const auto refused = a.service->submit("default", one(doc("new", "text")), {});
  EXPECT_TRUE(catalog_is_away(refused.status())) << refused.status().to_string();
  EXPECT_TRUE(catalog_is_away(b.service->jobs().job("default", id).status()));
  EXPECT_OK(a.service->jobs().job("default", id)) << "its own it knows";
  EXPECT_OK(a.tend());
  a.engine->open();
  database->away = false;
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_EQ(b.end_of(id).status, JobStatus::kSucceeded);
}

TEST_F(SharedJobsTest, AStartWhileTheCatalogIsAwayWaitsUntilItKnowsWhichJobsAreItsOwn) {
  a.engine->close();
  const std::string id = a.submit(1);
  a.engine->wait_for_one();
  a.close();
  ASSERT_OK(b.tend());
  EXPECT_EQ(b.end_of(id).status, JobStatus::kSucceeded);
  ASSERT_OK(b.service->documents().remove("default", "d0"));
  database->away = true;
  a.open();
  EXPECT_OK(a.tend());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(a.engine->prefills(), 0);
  database->away = false;
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_TRUE(soon([&] { return a.version("d0") == 0; }));
  EXPECT_EQ(a.engine->prefills(), 0);
}

TEST_F(SharedJobsTest, JobsFromBeforeTheCatalogAreSharedWithTheFirstStart) {
  Node c(database);
  c.close();
  c.open(/*with_catalog=*/false);
  c.engine->close();
  const std::string id = c.submit(2, "own");
  c.engine->wait_for_one();
  EXPECT_FALSE(database->jobs.all().contains(id));
  c.close();
  c.open();
  EXPECT_EQ(c.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_EQ(b.end_of(id).counts.completed, 2);
  EXPECT_TRUE(soon([&] { return b.content("own1") == "text 1"; }));
}

TEST_F(SharedJobsTest, AJobThatCannotBeReadIsLeftToOthers) {
  SharedJob odd;
  odd.id = "job_odd";
  odd.ns = "default";
  odd.record = "of a newer program";
  MemoryJobs gone(database->jobs, [] { return Status(); });
  ASSERT_OK(gone.add(odd, {}));
  const std::string id = a.submit(1);
  database->jobs.forget_replicas();
  ASSERT_OK(b.tend());
  ASSERT_OK(b.tend());
  EXPECT_FALSE(b.service->jobs().job("default", "job_odd").ok());
  EXPECT_EQ(b.end_of(id).status, JobStatus::kSucceeded) << "the others go on";
  EXPECT_EQ(database->jobs.all().at("job_odd").job.record, odd.record);
  EXPECT_EQ(database->jobs.all().at("job_odd").owner, "");
  const int claims = database->jobs.claims;
  for (int i = 0; i < 5; ++i) ASSERT_OK(b.tend());
  EXPECT_EQ(database->jobs.claims, claims) << "it is not taken and given back again and again";
}

TEST_F(SharedJobsTest, AJobThatAFullDiskCannotTakeGoesOnAtAnotherReplica) {
  Node c(database);
  c.engine->close();
  const std::string id = c.submit(2);
  c.close();
  a.disk->full_from = 0;
  ASSERT_OK(a.tend());
  EXPECT_EQ(database->jobs.all().at(id).owner, "");
  const int claims = database->jobs.claims;
  EXPECT_GE(claims, 1);
  ASSERT_OK(a.tend());
  EXPECT_EQ(database->jobs.claims, claims);
  EXPECT_EQ(b.end_of(id).counts.completed, 2);
  EXPECT_EQ(a.engine->prefills(), 0);
}

TEST_F(SharedJobsTest, APostThatAFullDiskRefusesIsDoneByNobody) {
  a.disk->full_from = 0;
  const auto refused = a.service->submit("default", one(doc("d0", "refused")), {});
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  ASSERT_EQ(database->jobs.all().size(), 1u);
  const std::string id = database->jobs.all().begin()->first;
  ASSERT_TRUE(soon([&] { return a.tend().ok() && database->jobs.all().at(id).job.ended; }));
  EXPECT_EQ(b.end_of(id).status, JobStatus::kCancelled);
  EXPECT_EQ(b.version("d0"), 0u);
}

TEST_F(SharedJobsTest, AStartWithAFullDiskAnswersAndTakesDocumentsOnceThereIsRoom) {
  const std::string id = a.submit(1);
  a.end_of(id);
  a.engine->close();
  const std::string waits = a.submit(1, "w");
  a.close();
  a.disk->full_from = 0;
  a.open();
  EXPECT_EQ(a.content("d0"), "text 0");
  EXPECT_EQ(a.service->submit("default", one(doc("n", "new")), {}).code(),
            Code::kResourceExhausted);
  a.disk->full_from = -1;
  EXPECT_EQ(a.end_of(waits).status, JobStatus::kSucceeded);
}

TEST_F(SharedJobsTest, AnEndThatWasSavedHereAndNotToldIsToldAfterTheRestart) {
  const std::string id = a.submit(1);
  a.end_of(id);
  ASSERT_TRUE(soon([&] { return database->jobs.all().at(id).job.ended; }));
  a.close();
  {
    const std::lock_guard lock(database->jobs.mu);
    database->jobs.jobs.at(id).job.ended = false;
    database->jobs.jobs.at(id).job.status = 1;
  }
  a.open();
  ASSERT_OK(a.tend());
  EXPECT_TRUE(database->jobs.all().at(id).job.ended);
  EXPECT_EQ(a.engine->prefills(), 0);
}

TEST_F(SharedJobsTest, ALaterPostElsewhereOutlivesAnEarlierOneThatIsStillWorkedOn) {
  a.engine->close();
  const std::string id = a.submit(1);  // d0 with "text 0"
  a.engine->wait_for_one();
  auto later = b.service->submit("default", one(doc("d0", "a later text")), {});
  ASSERT_OK(later);
  EXPECT_EQ(b.end_of(later->id).results[0].result, ItemResult::kCreated);
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.engine->open();
  EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
  EXPECT_EQ(b.content("d0"), "a later text");
  EXPECT_EQ(a.content("d0"), "a later text");
  EXPECT_EQ(b.version("d0"), 1u);
}

TEST_F(SharedJobsTest, APostThatChangedNothingIsLaterThanThoseBeforeIt) {
  const std::string first = b.submit(1);
  b.end_of(first);
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.engine->close();
  auto other = a.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  a.engine->wait_for_one();
  const std::string again = b.submit(1);
  EXPECT_EQ(b.end_of(again).results[0].result, ItemResult::kUnchanged);
  a.engine->open();
  EXPECT_EQ(a.end_of(other->id).status, JobStatus::kSucceeded);
  EXPECT_EQ(a.content("d0"), "text 0") << "what was acknowledged last";
  EXPECT_EQ(b.version("d0"), 1u);
}

TEST_F(SharedJobsTest, ADeletionElsewhereOutlivesAnEarlierPost) {
  const std::string first = b.submit(1);
  b.end_of(first);
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.engine->close();
  auto other = a.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  a.engine->wait_for_one();
  ASSERT_OK(b.service->documents().remove("default", "d0"));
  a.engine->open();
  a.end_of(other->id);
  EXPECT_EQ(b.version("d0"), 0u);
  EXPECT_TRUE(soon([&] { return a.version("d0") == 0; }));
  const std::string anew = b.submit(1);
  EXPECT_EQ(b.end_of(anew).results[0].result, ItemResult::kCreated) << "a later post makes it anew";
}

TEST_F(SharedJobsTest, ADeletionMeetsADocumentThatAnotherReplicaHasMadeThatMoment) {
  a.engine->close();
  const std::string id = a.submit(1);
  a.engine->wait_for_one();
  std::atomic<bool> met = false;
  database->set_fault([&](std::string_view operation) {
    if (operation != "bar" || met.exchange(true)) return Status();
    a.engine->open();
    EXPECT_EQ(a.end_of(id).status, JobStatus::kSucceeded);
    return Status();
  });
  EXPECT_OK(b.service->documents().remove("default", "d0")) << "it was not there, and is";
  EXPECT_TRUE(met);
  database->set_fault({});
  EXPECT_EQ(b.version("d0"), 0u);
  EXPECT_TRUE(soon([&] { return a.version("d0") == 0; }));
}

TEST_F(SharedJobsTest, ADeletionThatCancelsAPostHereOutlivesAnEarlierOneElsewhere) {
  a.engine->close();
  b.engine->close();
  auto other = a.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  a.engine->wait_for_one();
  const std::string here = b.submit(1);
  b.engine->wait_for_one();
  ASSERT_OK(b.service->documents().remove("default", "d0"));
  b.engine->open();
  a.engine->open();
  a.end_of(other->id);
  b.end_of(here);
  EXPECT_EQ(a.version("d0"), 0u);
  EXPECT_TRUE(soon([&] { return b.version("d0") == 0; }));
}

TEST_F(SharedJobsTest, AJobThatWasRefusedIsNotDoneThoughItReachedTheCatalog) {
  database->jobs.lose_answer = true;
  const auto refused = a.service->submit("default", one(doc("d0", "refused")), {});
  EXPECT_TRUE(catalog_is_away(refused.status()));
  ASSERT_EQ(database->jobs.all().size(), 1u);
  const std::string id = database->jobs.all().begin()->first;
  const std::string later = b.submit(1);
  b.end_of(later);
  EXPECT_EQ(a.end_of(id).status, JobStatus::kCancelled);
  EXPECT_EQ(b.end_of(id).status, JobStatus::kCancelled);
  EXPECT_EQ(a.engine->prefills(), 0);
  EXPECT_EQ(b.content("d0"), "text 0");
}

TEST_F(SharedJobsTest, PostsThatFailedAreForgottenOnceTheirJobsCannotComeAnyMore) {
  Node c(database, std::chrono::milliseconds(0));
  c.engine->close();
  database->set_fault([](std::string_view operation) {
    return operation == "jobs" ? catalog_away("it is away in this test") : Status();
  });
  for (int i = 0; i < 10'010; ++i)
    ASSERT_FALSE(c.service->submit("default", one(doc("d", "refused")), {}).ok());
  EXPECT_EQ(c.service->stats().jobs_refused, 10'000) << "there is a bound";
  database->set_fault({});
  EXPECT_TRUE(soon([&] { return c.tend().ok() && c.service->stats().jobs_refused == 0; }));
}

/// Runs `then` before the next operation of this name.
void before_next(MemoryDatabase& database, const std::string& name, std::function<void()> then) {
  const auto first = std::make_shared<std::atomic<bool>>(true);
  database.set_fault([=](std::string_view operation) {
    if (operation == name && first->exchange(false)) then();
    return Status();
  });
}

TEST_F(SharedJobsTest, AListenerThatComesWhileTheOthersAreToldOfTheEndHearsOfItToo) {
  a.engine->close();
  const std::string id = a.submit(1);
  a.engine->wait_for_one();
  std::atomic<int> first_done{0}, second_done{0};
  const auto count = [](std::atomic<int>& done) {
    return [&done](JobEvent event, const JobSnapshot&) { done += event == JobEvent::kDone; };
  };
  const auto first = b.service->jobs().subscribe("default", id, count(first_done));
  ASSERT_OK(first);
  Result<Subscription> second = Status::unavailable("not yet");
  before_next(*database, "jobs", [&] {  // b asks for the job of its one listener
    second = b.service->jobs().subscribe("default", id, count(second_done));
    a.engine->open();
    EXPECT_TRUE(soon([&] { return database->jobs.all().at(id).job.ended; }));
  });
  ASSERT_OK(b.tend());
  EXPECT_EQ(first_done, 1);
  ASSERT_OK(second);
  ASSERT_OK(b.tend());
  EXPECT_EQ(second_done, 1);
}

TEST_F(SharedJobsTest, APostThatWouldChangeNothingMeetsAnotherTextThatCameInBetween) {
  a.end_of(a.submit(1));
  ASSERT_TRUE(soon([&] { return b.version("d0") == 1; }));
  b.engine->close();
  const auto other = b.service->submit("default", one(doc("d0", "another text")), {});
  ASSERT_OK(other);
  before_next(*database, "confirm", [&] {
    b.engine->open();
    EXPECT_EQ(b.end_of(other->id).results[0].result, ItemResult::kUpdated);
  });
  const std::string last = a.submit(1);  // the text of before
  EXPECT_EQ(a.end_of(last).results[0].result, ItemResult::kUpdated);
  EXPECT_EQ(a.content("d0"), "text 0");
  EXPECT_TRUE(soon([&] { return b.version("d0") == 3 && b.content("d0") == "text 0"; }));
}

TEST_F(SharedJobsTest, APostOfAnotherTitleDoesNotPutItOverAnotherText) {
  a.end_of(a.submit(1));
  ASSERT_TRUE(soon([&] { return b.version("d0") == 1; }));
  b.engine->close();
  DocumentInput theirs = doc("d0", "another text");
  theirs.title = "theirs";
  const auto other = b.service->submit("default", one(theirs), {});
  ASSERT_OK(other);
  before_next(*database, "put", [&] {
    b.engine->open();
    b.end_of(other->id);
  });
  DocumentInput ours = doc("d0", "text 0");
  ours.title = "ours";
  const auto last = a.service->submit("default", one(ours), {});
  ASSERT_OK(last);
  a.end_of(last->id);
  for (Node* node : {&a, &b}) {
    EXPECT_TRUE(soon([&] { return node->content("d0") == "text 0"; }));
    EXPECT_EQ(node->service->documents().get("default", "d0")->title, "ours");
  }
}

TEST_F(SharedJobsTest, APostThatMayNotReplaceMeetsADocumentThatCameInBetween) {
  for (const IfExists what : {IfExists::kError, IfExists::kSkip}) {
    const std::string id = what == IfExists::kError ? "e" : "s";
    b.engine->close();
    const auto other = b.service->submit("default", one(doc(id, "theirs")), {});
    ASSERT_OK(other);
    before_next(*database, "put", [&] {
      b.engine->open();
      b.end_of(other->id);
    });
    BatchOptions options;
    options.if_exists = what;
    const auto job = a.service->submit("default", one(doc(id, "ours")), options);
    ASSERT_OK(job);
    const JobSnapshot end = a.end_of(job->id);
    if (what == IfExists::kError) {
      ASSERT_TRUE(end.results[0].error.has_value());
      EXPECT_EQ(end.results[0].error->code, "document_exists");
    } else {
      EXPECT_EQ(end.results[0].result, ItemResult::kSkipped);
    }
    EXPECT_EQ(a.content(id), "theirs");
  }
}

TEST_F(SharedJobsTest, AStoreThatLeavesTheCatalogTakesPostsWhateverClocksSaidBefore) {
  b.close();
  b.options.clock_ms = [] { return std::int64_t{4'000'000'000'000}; };  // decades ahead
  b.open();
  b.end_of(b.submit(1));
  ASSERT_TRUE(soon([&] { return a.version("d0") == 1; }));
  a.close();
  a.open(/*with_catalog=*/false);
  const auto job = a.service->submit("default", one(doc("d0", "a later text")), {});
  ASSERT_OK(job);
  EXPECT_EQ(a.end_of(job->id).results[0].result, ItemResult::kUpdated);
  EXPECT_EQ(a.content("d0"), "a later text");
}

TEST_F(SharedJobsTest, TheClocksOfReplicasDoNotDecideTheOrder) {
  b.close();
  b.options.clock_ms = [] { return std::int64_t{1'000'000}; };  // decades behind
  b.open();
  const std::string first = a.submit(1);
  a.end_of(first);
  ASSERT_TRUE(soon([&] { return b.version("d0") == 1; }));
  auto later = b.service->submit("default", one(doc("d0", "a later text")), {});
  ASSERT_OK(later);
  EXPECT_LT(later->id, first);
  EXPECT_EQ(b.end_of(later->id).results[0].result, ItemResult::kUpdated);
  EXPECT_TRUE(soon([&] { return a.content("d0") == "a later text"; }));
}

}  // namespace
}  // namespace quire
