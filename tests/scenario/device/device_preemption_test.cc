/// Work that makes way for a query while the memory through which pages leave an emulated device is
/// short: it ends alone, and everybody else is served.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "tests/support/harness/device_side.h"
#include "tests/support/simt/refusing_ops.h"

namespace quire::testing {
namespace {

// A column is 16 rows in every layer: 3 layers * 2 heads * 2 * 16 * 16 * 4 bytes.
constexpr std::int64_t kColumn = 12288;

class DevicePreemptionTest : public DeviceSideTest {
 protected:
  std::unique_ptr<DeviceSide> small_side(std::int64_t columns) {
    edit_options_ = [columns](EngineOptions& o) {
      o.working_cache_bytes = columns * kColumn;
      o.host_cache_bytes = 0;
      o.prefill_chunk_tokens = 64;
    };
    return side(model_.path(), "device", make_device_compute(ops_), {});
  }
  /// Calls at_copy() before each allocation of the pinned memory through which whole columns leave
  /// the device and come back; its error ends the allocation.
  void watch_copies(std::function<Status()> at_copy) {
    ops_->at_allocation = [at_copy = std::move(at_copy)](cuda::MemoryKind kind,
                                                         std::int64_t bytes) {
      return at_copy && kind == cuda::MemoryKind::kPinned && bytes % kColumn == 0 ? at_copy()
                                                                                  : Status();
    };
  }
  QueryRequest question(DeviceSide& s, std::size_t prompt, std::int32_t answer) {
    QueryRequest r = make_request(*s.engine, {}, random_ids(rng_, prompt), "recompute");
    r.cache.decode = "dense";
    r.sampling.max_tokens = answer;
    return r;
  }
  std::shared_ptr<CollectingSink> ask(DeviceSide& s, QueryRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(s.engine->query(std::move(request), sink).ok());
    return sink;
  }
  /// Prefills a context of 13 of 16 columns, for which a query must make way after its first piece.
  /// Returns how the context ended.
  Status ingest_beside_a_query(DeviceSide& s, const std::function<Status()>& at_copy) {
    std::promise<Status> ended;
    Gate begun, asked;
    PrefillRequest prefill;
    prefill.token_ids = random_ids(rng_, 200);
    prefill.on_progress = [&](std::int64_t tokens) {
      if (tokens > 64) return;
      watch_copies(at_copy);
      begun.open();
      asked.pass();
    };
    s.engine->prefill(std::move(prefill),
                      [&ended](Result<PrefillResult> r) { ended.set_value(r.status()); });
    begun.pass();
    const auto sink = ask(s, question(s, 60, 20));
    asked.open();
    EXPECT_TRUE(sink->wait().status.ok()) << sink->wait().status.to_string();
    const Status status = ended.get_future().get();
    ops_->at_allocation = nullptr;
    return status;
  }
  /// Embeds a text of 19 of 23 columns, for which a query must make way after its first piece.
  /// Returns how the text ended.
  Status embed_beside_a_query(DeviceSide& s, const std::function<Status()>& at_copy) {
    // The engine thread is held until everything is queued.
    Gate held, queued, begun, asked;
    auto blocker = std::make_shared<CollectingSink>();
    blocker->at_token = [&](int) {
      held.open();
      queued.pass();
      return true;
    };
    EXPECT_TRUE(s.engine->query(question(s, 4, 2), blocker).ok());
    held.pass();
    std::promise<Status> ended;
    EmbedRequest text;
    text.token_ids = random_ids(rng_, 300);
    s.engine->embed(std::move(text),
                    [&ended](Result<std::vector<float>> v) { ended.set_value(v.status()); });
    // Contexts and texts take turns: with the second context, a piece of the text has been run.
    std::vector<std::future<Status>> contexts;
    for (const bool second : {false, true}) {
      auto done = std::make_shared<std::promise<Status>>();
      contexts.push_back(done->get_future());
      PrefillRequest prefill;
      prefill.token_ids = random_ids(rng_, 40);
      if (second) {
        prefill.on_progress = [&](std::int64_t) {
          watch_copies(at_copy);
          begun.open();
          asked.pass();
        };
      }
      s.engine->prefill(std::move(prefill),
                        [done](Result<PrefillResult> r) { done->set_value(r.status()); });
    }
    queued.open();
    begun.pass();
    const auto sink = ask(s, question(s, 60, 20));
    asked.open();
    EXPECT_TRUE(sink->wait().status.ok()) << sink->wait().status.to_string();
    const Status status = ended.get_future().get();
    for (auto& context : contexts) EXPECT_TRUE(context.get().ok());
    (void)blocker->wait();
    ops_->at_allocation = nullptr;
    return status;
  }
  /// Expects that a text of as many columns is embedded.
  void expect_embedded(DeviceSide& s) {
    std::promise<Status> ended;
    EmbedRequest text;
    text.token_ids = random_ids(rng_, 300);
    s.engine->embed(std::move(text),
                    [&ended](Result<std::vector<float>> v) { ended.set_value(v.status()); });
    const Status status = ended.get_future().get();
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  const RandomModelFolder model_;
  const std::shared_ptr<simt::RefusingOps> ops_ = std::make_shared<simt::RefusingOps>(
      simt::make_emulated_ops());
  std::mt19937 rng_{29};
};

Status out_of_memory() { throw std::bad_alloc(); }
Status refuse() { return Status::exhausted("no pinned memory is left"); }

/// Two queries that grow from 6 to 8 of 12 columns each.
class TwoQueriesTest : public DevicePreemptionTest {
 protected:
  /// Runs both; `at_copy` is set before the pages are used up.
  void ask_beside(DeviceSide& s, std::function<Status()> at_copy) {
    Gate asked;
    older_->at_token = [&](int tokens) {
      if (tokens == 1) asked.pass();
      if (tokens == 60) watch_copies(std::move(at_copy));
      return true;
    };
    EXPECT_TRUE(s.engine->query(question(s, 20, 100), older_).ok());
    EXPECT_TRUE(s.engine->query(question(s, 20, 100), younger_).ok());
    asked.open();
    EXPECT_TRUE(older_->wait().status.ok()) << older_->wait().status.to_string();
    EXPECT_EQ(older_->wait().ids.size(), 100u);
    (void)younger_->wait();
    ops_->at_allocation = nullptr;
  }
  /// Expects that the younger query ended early, saying why, and that the next one is answered.
  void expect_ended(DeviceSide& s) {
    const Status& status = younger_->wait().status;
    EXPECT_EQ(status.code(), Code::kResourceExhausted);
    EXPECT_NE(status.message().find("no pinned memory is left"), std::string::npos)
        << status.to_string();
    EXPECT_LT(younger_->wait().ids.size(), 100u);
    const Outcome next = run_query(*s.engine, question(s, 100, 5));
    EXPECT_TRUE(next.status.ok()) << next.status.to_string();
    EXPECT_EQ(s.engine->load().queries_running, 0);
  }

  const std::shared_ptr<CollectingSink> older_ = std::make_shared<CollectingSink>(),
                                        younger_ = std::make_shared<CollectingSink>();
};

TEST_F(TwoQueriesTest, OneThatCannotMakeWayEndsAlone) {
  const auto s = small_side(12);
  ask_beside(*s, refuse);
  EXPECT_EQ(younger_->wait().stats.preemptions, 0);
  expect_ended(*s);
}

TEST_F(TwoQueriesTest, OneThatCannotGoOnEndsAlone) {
  const auto s = small_side(12);
  ask_beside(*s, [copies = 0]() mutable { return ++copies == 1 ? Status() : refuse(); });
  EXPECT_EQ(younger_->wait().stats.preemptions, 1);
  expect_ended(*s);
}

TEST_F(DevicePreemptionTest, AnswersWhoseLengthNobodyAskedForRunTogether) {
  // The longest answer to each takes 32 columns, so the longest of three more than twice the
  // budget.
  const auto s = small_side(40);
  Gate asked;
  std::vector<RequestInfo> seen;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    QueryRequest r = question(*s, 20, 480);
    r.sampling.max_tokens_asked = false;
    auto sink = std::make_shared<CollectingSink>();
    sink->at_token = [&, i](int tokens) {
      if (i == 0 && tokens == 1) asked.pass();
      if (i == 0 && tokens == 15) seen = s->engine->requests();
      return tokens < 20;
    };
    EXPECT_TRUE(s->engine->query(std::move(r), sink).ok());
    sinks.push_back(std::move(sink));
  }
  asked.open();
  for (auto& sink : sinks) EXPECT_EQ(sink->wait().ids.size(), 20u);
  EXPECT_EQ(seen.size(), 3u);
  for (const RequestInfo& r : seen) EXPECT_NE(r.state, RequestState::kWaiting);
}

TEST_F(DevicePreemptionTest, AContextThatCannotMakeWayEndsAlone) {
  const auto s = small_side(16);
  const Status ended = ingest_beside_a_query(*s, refuse);
  EXPECT_EQ(ended.code(), Code::kResourceExhausted);
  EXPECT_NE(ended.message().find("no pinned memory is left"), std::string::npos)
      << ended.to_string();
  const auto next = prefill_now(*s->engine, random_ids(rng_, 200));
  EXPECT_TRUE(next.ok()) << next.status().to_string();
}

TEST_F(DevicePreemptionTest, AContextThatCannotGoOnEndsAlone) {
  const auto s = small_side(16);
  const Status ended = ingest_beside_a_query(
      *s, [copies = 0]() mutable { return ++copies == 1 ? Status() : refuse(); });
  EXPECT_EQ(ended.code(), Code::kResourceExhausted);
  const auto next = prefill_now(*s->engine, random_ids(rng_, 200));
  EXPECT_TRUE(next.ok()) << next.status().to_string();
}

TEST_F(DevicePreemptionTest, ATextThatCannotMakeWayEndsAlone) {
  const auto s = small_side(23);
  EXPECT_EQ(embed_beside_a_query(*s, refuse).code(), Code::kResourceExhausted);
  expect_embedded(*s);
}

TEST_F(DevicePreemptionTest, AContextThatMeetsAnExceptionEndsAlone) {
  const auto s = small_side(16);
  EXPECT_EQ(ingest_beside_a_query(*s, out_of_memory).code(), Code::kResourceExhausted);
  const auto next = prefill_now(*s->engine, random_ids(rng_, 200));
  EXPECT_TRUE(next.ok()) << next.status().to_string();
}

TEST_F(DevicePreemptionTest, ATextThatMeetsAnExceptionEndsAlone) {
  const auto s = small_side(23);
  EXPECT_EQ(embed_beside_a_query(*s, out_of_memory).code(), Code::kResourceExhausted);
  expect_embedded(*s);
}

}  // namespace
}  // namespace quire::testing
