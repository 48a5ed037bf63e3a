// Jobs that end the process which works on them: they are worked on alone, and fail in the end, and
// no other job does.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/harness/ingest_node.h"

namespace quire {
namespace {

using namespace test;
using testing::soon;

constexpr std::uint64_t kMost = 10;

/// Several replicas whose prefills wait.
struct JobsThatEndReplicas : ::testing::Test {
  JobsThatEndReplicas() {
    for (std::uint64_t i = 0; i <= kMost; ++i) {
      nodes.push_back(std::make_unique<Node>(database));
      nodes.back()->engine->close();
    }
  }
  MemoryJobs::Entry entry(const std::string& id) { return database->jobs.all().at(id); }
  bool begins(const std::string& id) {
    return soon([&] { return entry(id).begun; });
  }
  std::shared_ptr<MemoryDatabase> database = std::make_shared<MemoryDatabase>();
  std::vector<std::unique_ptr<Node>> nodes;
};

TEST_F(JobsThatEndReplicas, AJobThatNoReplicaSurvivesFails) {
  const std::string id = nodes[0]->submit(2);
  for (std::uint64_t i = 1; i <= kMost; ++i) {
    ASSERT_TRUE(begins(id));
    database->jobs.forget_replicas();
    ASSERT_OK(nodes[i]->tend());
    EXPECT_EQ(entry(id).attempts, i);
    EXPECT_EQ(entry(id).job.ended, i == kMost) << i;
  }
  EXPECT_EQ(nodes[kMost]->engine->prefills(), 0);
  const JobSnapshot end = nodes[1]->end_of(id);
  EXPECT_EQ(end.status, JobStatus::kFailed);
  EXPECT_EQ(end.counts.failed, 2);
  ASSERT_TRUE(end.results[0].error);
  EXPECT_NE(end.results[0].error->message.find("10 replicas in a row"), std::string::npos);
  EXPECT_TRUE(entry(id).parts.empty());
}

TEST_F(JobsThatEndReplicas, AJobThatGoesForwardHasAsManyAttemptsAsItNeeds) {
  const std::string id = nodes[0]->submit(4);
  for (std::size_t i = 0; i < 3; ++i) {
    nodes[i]->engine->permit(1);
    ASSERT_TRUE(soon([&] { return entry(id).items.size() == i + 1; }));
    database->jobs.forget_replicas();
    ASSERT_OK(nodes[i + 1]->tend());
    EXPECT_EQ(entry(id).attempts, 1u);
    ASSERT_TRUE(begins(id));
  }
  nodes[3]->engine->open();
  EXPECT_EQ(nodes[3]->end_of(id).counts.completed, 4);
}

TEST_F(JobsThatEndReplicas, AJobThatWasNotBegunHasNoPartInIt) {
  Node first(database);
  first.engine->close();
  std::vector<std::string> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(first.submit(1, "d" + std::to_string(i) + "-"));
  ASSERT_TRUE(begins(ids[0]));
  database->jobs.forget_replicas();
  for (int i = 0; i < 2; ++i) ASSERT_OK(nodes[0]->tend());  // as it takes some at once
  EXPECT_EQ(entry(ids[0]).attempts, 1u);
  EXPECT_EQ(entry(ids[39]).attempts, 0u);
  EXPECT_EQ(entry(ids[39]).owner, nodes[0]->store->shared_jobs()->replica());
}

TEST_F(JobsThatEndReplicas, OneThatDidSoTwiceIsWorkedOnAlone) {
  const std::string id = nodes[0]->submit(1, "suspect");
  const std::string other = nodes[0]->submit(3, "other");
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(begins(id) && begins(other));
    database->jobs.forget_replicas();
    ASSERT_OK(nodes[i + 1]->tend());
  }
  ASSERT_TRUE(begins(id));
  EXPECT_EQ(entry(other).attempts, 2u);
  // Nothing else begins beside it, now or by a new job.
  const std::string later = nodes[2]->submit(1, "later");
  EXPECT_EQ(nodes[2]->service->stats().documents_in_flight, 1);
  EXPECT_FALSE(entry(other).begun);
  database->jobs.forget_replicas();
  ASSERT_OK(nodes[3]->tend());
  EXPECT_EQ(entry(id).attempts, 3u);
  EXPECT_EQ(entry(other).attempts, 2u);
  EXPECT_EQ(entry(later).attempts, 0u);
  nodes[3]->engine->open();
  for (const std::string& one : {id, other, later})
    EXPECT_EQ(nodes[3]->end_of(one).status, JobStatus::kSucceeded);
}

TEST_F(JobsThatEndReplicas, AStopIsNoAttempt) {
  const std::string id = nodes[0]->submit(2);
  for (std::size_t i = 0; i < kMost; ++i) {
    ASSERT_TRUE(begins(id));
    nodes[i]->close();
    ASSERT_OK(nodes[i + 1]->tend());
  }
  EXPECT_EQ(entry(id).attempts, 0u);
  nodes[kMost]->engine->open();
  EXPECT_EQ(nodes[kMost]->end_of(id).status, JobStatus::kSucceeded);
}

TEST_F(JobsThatEndReplicas, AReplicaThatStartsAgainEndsItsOwnJobToo) {
  Node& node = *nodes[0];
  const std::string id = node.submit(2);
  ASSERT_TRUE(begins(id));
  node.close();
  {
    const std::lock_guard lock(database->jobs.mu);
    database->jobs.left.clear();  // as if it had died
    database->jobs.jobs.at(id).attempts = kMost - 1;
  }
  node.open();
  EXPECT_EQ(node.end_of(id).status, JobStatus::kFailed);
  EXPECT_EQ(node.engine->prefills(), 0);
  EXPECT_TRUE(entry(id).job.ended);
}

/// A service without others. It dies when the disk is copied, and the next one has the copy.
struct JobsThatEndTheService : ::testing::Test {
  void die() {
    auto next = std::make_unique<Node>(nullptr);
    next->close();
    {
      const std::lock_guard lock(node->disk->mu);
      const std::lock_guard other(next->disk->mu);
      next->disk->records = node->disk->records;
      next->disk->segments = node->disk->segments;
      next->disk->records_counted = 0;
      next->disk->record_bytes = 0;
    }
    dead.push_back(std::move(node));
    node = std::move(next);
    node->prefills_wait = true;
    node->open(false);
  }
  /// Waits until the job is noted as begun.
  bool begins(const std::string& id) {
    return soon([&] {
      const auto stored = node->store->get_meta("ingest/attempts/" + id);
      return stored.ok() && stored->ends_with(" 1");
    });
  }
  std::uint64_t attempts(const std::string& id) {
    return std::stoull(node->store->get_meta("ingest/attempts/" + id).value_or("99"));
  }
  std::vector<std::unique_ptr<Node>> dead;
  std::unique_ptr<Node> node = std::make_unique<Node>(nullptr);
};

TEST_F(JobsThatEndTheService, OneThatNoStartSurvivesFailsAndTheOthersDoNot) {
  node->engine->close();
  const std::string id = node->submit(2, "ends"), other = node->submit(1, "other");
  ASSERT_TRUE(begins(other));
  for (std::uint64_t i = 1; i < kMost; ++i) {
    ASSERT_TRUE(begins(id)) << i;
    die();
    EXPECT_EQ(attempts(id), i);
    EXPECT_EQ(attempts(other), std::min<std::uint64_t>(i, 2));
    EXPECT_FALSE(node->service->jobs().job("default", id)->finished());
  }
  ASSERT_TRUE(begins(id));
  die();
  const JobSnapshot end = node->end_of(id);
  EXPECT_EQ(end.status, JobStatus::kFailed);
  ASSERT_TRUE(end.results[0].error);
  EXPECT_NE(end.results[0].error->message.find("10 times in a row"), std::string::npos);
  node->engine->open();
  EXPECT_EQ(node->end_of(other).status, JobStatus::kSucceeded);
  EXPECT_EQ(node->content("other0"), "text 0");
}

TEST_F(JobsThatEndTheService, AStopIsNoAttempt) {
  node->engine->close();
  const std::string id = node->submit(1);
  ASSERT_TRUE(begins(id));
  node->close();
  node->open(false);
  EXPECT_EQ(attempts(id), 0u);
  EXPECT_EQ(node->end_of(id).status, JobStatus::kSucceeded);
}

}  // namespace
}  // namespace quire
