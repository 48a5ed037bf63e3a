#include "server/capacity/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace quire::capacity {
namespace {

/// A context of 100 tokens takes 10 s to compute, 1 s from memory, 2 s from disk, 3 s from a shared
/// tier; a byte a token.
Rates rates() {
  Rates r;
  r.bytes_per_token = r.stored_bytes_per_token = 1;
  r.prefill = {{100, 10'000}};
  r.dram = {1000, 0};
  r.disk = {2000, 0};
  r.remote = {3000, 0};
  r.decode = {{1, 10}};
  return r;
}

/// One question a minute over each of these contexts in turn.
Trace minutes(const std::vector<std::uint64_t>& keys) {
  std::vector<TraceRequest> requests;
  for (const std::uint64_t key : keys)
    requests.push_back({60.0 * static_cast<double>(requests.size()), key, 1, 1, {{key, 100}}});
  return Trace(std::move(requests));
}

FleetResult run(const Trace& trace, const Rates& rates, const FleetOptions& options) {
  auto r = simulate_fleet(trace, rates, options);
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return r.ok() ? *r : FleetResult();
}

TEST(Fleet, LruLosesACycleThatIsOneTooLong) {
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 40; ++i) keys.push_back(1 + static_cast<std::uint64_t>(i) % 4);
  FleetOptions o;
  o.dram_bytes = 400;
  o.disk_bytes = 400;
  FleetResult r = run(minutes(keys), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.dram_tokens), 36.0 / 40);
  EXPECT_DOUBLE_EQ(r.share(r.computed_tokens), 4.0 / 40);
  o.disk_bytes = 399;
  r = run(minutes(keys), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.computed_tokens), 1);
  o.remote = true;
  r = run(minutes(keys), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.remote_tokens), 36.0 / 40);
}

TEST(Fleet, TimesAreThoseOfTheTiers) {
  FleetOptions o;
  o.dram_bytes = 100;
  const FleetResult r = run(minutes({1, 1, 2, 1}), rates(), o);  // computed, dram, computed, disk
  EXPECT_NEAR(r.ttft_mean, (10 + 1 + 10 + 2) / 4.0, 1e-6);
  EXPECT_NEAR(r.ttft_p50, 2, 1e-6);
  EXPECT_NEAR(r.ttft_p99, 10, 1e-6);
  EXPECT_NEAR(r.wait_p95, 0, 1e-6);
  EXPECT_NEAR(r.backlog_seconds, 2, 1e-6) << "the last question's own time";
}

TEST(Fleet, TheFirstQuestionAfterAPauseCostsMore) {
  Rates r = rates();
  r.idle = {{100, 1000}};
  // Nothing ran before the first one, which ends after 11 s. The second comes 49 s after that.
  const FleetResult two = run(minutes({1, 1}), r, {});
  EXPECT_NEAR(two.ttft_mean, (11 + 1.49) / 2, 1e-6);
  EXPECT_NEAR(two.wait_mean, 0, 1e-6) << "nobody waits for others";
  // Two at once: the second one finds the engine at work.
  std::vector<TraceRequest> requests{{0, 1, 1, 1, {{1, 100}}}, {0, 1, 1, 1, {{2, 100}}}};
  EXPECT_NEAR(run(Trace(std::move(requests)), r, {}).ttft_p99, 21, 1e-6);
}

TEST(Fleet, AnotherReplicaReadsTheSharedTier) {
  FleetOptions o;
  o.replicas = 2;
  o.routing = Routing::kRoundRobin;
  FleetResult r = run(minutes({1, 1, 1, 1}), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.computed_tokens), 0.5);
  o.remote = true;
  r = run(minutes({1, 1, 1, 1}), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.computed_tokens), 0.25);
  EXPECT_DOUBLE_EQ(r.share(r.remote_tokens), 0.25);
  EXPECT_EQ(r.remote_read, 100);
  EXPECT_EQ(r.remote_written, 100);
  o.routing = Routing::kAffinity;
  r = run(minutes({1, 1, 1, 1}), rates(), o);
  EXPECT_DOUBLE_EQ(r.share(r.dram_tokens), 0.75);
}

TEST(Fleet, ThePeakOfAShortTraceIsNoLessThanItsMean) {
  Rates r = rates();
  r.prefill = {{100, 1}};
  std::vector<TraceRequest> requests;
  for (std::uint64_t i = 0; i < 4; ++i)
    requests.push_back({static_cast<double>(i), i, 1, 1, {{i, 100}}});
  FleetOptions o;
  o.remote = true;
  const FleetResult got = run(Trace(std::move(requests)), r, o);
  EXPECT_EQ(got.remote_written, 400);
  EXPECT_NEAR(got.network_peak, got.remote_written / 3, 0.2 * got.remote_written);
}

TEST(Fleet, WhatTwoReplicasComputeAtOnceIsCounted) {
  std::vector<TraceRequest> requests{{0, 1, 1, 1, {{1, 100}}}, {5, 1, 1, 1, {{1, 100}}}};
  FleetOptions o;
  o.replicas = 2;
  o.routing = Routing::kRoundRobin;
  o.remote = true;
  const FleetResult r = run(Trace(std::move(requests)), rates(), o);
  EXPECT_EQ(r.computed_twice, 1u);
  EXPECT_NEAR(r.computed_twice_seconds, 10, 1e-9);
  EXPECT_EQ(r.remote_written, 100) << "the second one finds it there";
}

TEST(Fleet, ReplicasOfOneHostShareIt) {
  std::vector<TraceRequest> requests{{0, 1, 1, 1, {{1, 100}}}, {0, 1, 1, 1, {{2, 100}}}};
  const Trace trace(std::move(requests));
  FleetOptions o;
  o.replicas = 2;
  o.routing = Routing::kRoundRobin;
  EXPECT_NEAR(run(trace, rates(), o).ttft_p99, 10, 1e-6);
  o.per_host = 2;
  EXPECT_NEAR(run(trace, rates(), o).ttft_p50, 20, 1e-6);
  Rates quick = rates();
  quick.host_speed = {1, 0.8};
  EXPECT_NEAR(run(trace, quick, o).ttft_p50, 12.5, 1e-6);
}

/// Questions without contexts, of one length, that come as a Poisson process.
Trace poisson(double mean_pause, int questions) {
  std::mt19937_64 random(5);
  std::vector<TraceRequest> requests;
  double at = 0;
  for (int i = 0; i < questions; ++i) {
    const double u = (static_cast<double>(random() >> 11) + 1) * 0x1p-53;
    at += -std::log(u) * mean_pause;
    requests.push_back({at, 0, 1, 1, {}});
  }
  return Trace(std::move(requests));
}

TEST(Fleet, WaitsAreThoseOfTheQueueingFormulas) {
  Rates r = rates();
  r.request_ms = 1000;
  for (const double load : {0.3, 0.6, 0.8}) {
    const Trace trace = poisson(1 / load, 300'000);
    FleetOptions o;
    o.max_running = 1;
    // M/D/1, first come first served (Pollaczek and Khinchine).
    const FleetResult fifo = run(trace, r, o);
    EXPECT_NEAR(fifo.wait_mean, load / (2 * (1 - load)), 0.04 * load / (2 * (1 - load))) << load;
    EXPECT_NEAR(fifo.utilisation, load, 0.01);
    // M/G/1 with processor sharing.
    o.max_running = 100'000;
    const FleetResult shared = run(trace, r, o);
    EXPECT_NEAR(shared.ttft_mean, 1 / (1 - load), 0.04 / (1 - load)) << load;
  }
}

/// Questions over contexts by Zipf's law, two each.
Trace zipf(int contexts, int questions) {
  std::mt19937_64 random(11);
  std::vector<double> sums;
  double sum = 0;
  for (int i = 1; i <= contexts; ++i) sums.push_back(sum += 1 / std::pow(i, 0.9));
  const auto draw = [&] {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53 * sum;
    return static_cast<std::uint64_t>(std::ranges::lower_bound(sums, u) - sums.begin()) + 1;
  };
  std::vector<TraceRequest> requests;
  for (int i = 0; i < questions; ++i) {
    const std::uint64_t a = draw(), b = draw();
    const auto tokens = [](std::uint64_t key) { return key % 2 == 0 ? 100u : 60u; };
    requests.push_back({i * 0.5, mix(a ^ mix(b)), 1, 1, {{a, tokens(a)}, {b, tokens(b)}}});
  }
  return Trace(std::move(requests));
}

TEST(Fleet, NothingIsLostOnTheWay) {
  const Trace trace = zipf(500, 5000);
  Rates r = rates();
  r.prefill = {{10, 10}};
  r.stored_bytes_per_token = 2;
  r.stored_bytes_per_context = 7;
  FleetOptions o;
  o.replicas = 3;
  o.dram_bytes = 3000;
  o.disk_bytes = 20'000;
  o.remote = true;
  const FleetResult got = run(trace, r, o);
  EXPECT_DOUBLE_EQ(got.context_tokens(), static_cast<double>(trace.context_tokens()));
  EXPECT_EQ(got.requests, trace.entries().size());
  EXPECT_DOUBLE_EQ(got.dram_read + got.disk_read, got.dram_tokens + got.disk_tokens);
  EXPECT_GT(got.remote_read, 2 * got.remote_tokens);
  EXPECT_DOUBLE_EQ(got.remote_written, got.remote_used) << "nothing left the shared tier";
  EXPECT_EQ(got.remote_contexts, trace.distinct_contexts());
  EXPECT_EQ(got.remote_used,
            static_cast<double>(2 * trace.distinct_tokens() + 7 * trace.distinct_contexts()));
  EXPECT_LE(got.disk_used, 3 * 20'000.0);
  EXPECT_GT(got.evictions, 0u);
  EXPECT_NEAR(got.prefill_seconds + got.saved_prefill_seconds,
              static_cast<double>(trace.context_tokens()) / 1000, 1e-6);
  EXPECT_LE(got.network_peak * 10, got.remote_read + got.remote_written);
  EXPECT_GT(got.network_peak, 0);
}

TEST(Fleet, AWarmUpFillsTheTiersAndIsNotCounted) {
  FleetOptions o;
  o.warmup_seconds = 119;
  const FleetResult r = run(minutes({1, 2, 1, 2}), rates(), o);
  EXPECT_EQ(r.requests, 2u);
  EXPECT_DOUBLE_EQ(r.share(r.dram_tokens), 1);
  EXPECT_NEAR(r.seconds, 121, 1e-9);
}

TEST(Fleet, ASampleOfTheContextsGivesNearlyTheSameShares) {
  const Trace trace = zipf(20'000, 60'000);
  Rates r = rates();
  r.prefill = {{10, 10}};
  r.dram = {1, 0};
  r.disk = {2, 0};
  r.remote = {3, 0};
  FleetOptions o;
  o.replicas = 4;
  o.remote = true;
  o.dram_bytes = 80'000;
  o.disk_bytes = 200'000;
  o.remote_bytes = 900'000;
  const FleetResult all = run(trace, r, o);
  // All tiers matter in this test.
  for (const double tokens :
       {all.dram_tokens, all.disk_tokens, all.remote_tokens, all.computed_tokens})
    ASSERT_GT(all.share(tokens), 0.05);
  const auto expect_near = [&](const FleetResult& some) {
    SCOPED_TRACE("sample " + std::to_string(o.sample) + ", " + std::to_string(o.sample_remote));
    EXPECT_NEAR(some.share(some.dram_tokens), all.share(all.dram_tokens), 0.03);
    EXPECT_NEAR(some.share(some.disk_tokens), all.share(all.disk_tokens), 0.03);
    EXPECT_NEAR(some.share(some.remote_tokens), all.share(all.remote_tokens), 0.03);
    EXPECT_NEAR(some.share(some.computed_tokens), all.share(all.computed_tokens), 0.03);
    EXPECT_NEAR(some.ttft_mean, all.ttft_mean, 0.1 * all.ttft_mean);
    EXPECT_NEAR(some.ttft_p95, all.ttft_p95, 0.1 * all.ttft_p95);
    EXPECT_NEAR(some.remote_used, all.remote_used, 0.1 * all.remote_used);
    EXPECT_NEAR(some.remote_read, all.remote_read, 0.1 * all.remote_read);
  };
  o.sample = o.sample_remote = 0.2;
  expect_near(run(trace, r, o));
  o.sample = 1;
  expect_near(run(trace, r, o));
}

TEST(Fleet, MemoryDecidesHowManyContextsAreSimulated) {
  const Trace trace = zipf(5000, 20'000);
  FleetOptions o;
  o.remote = true;
  choose_samples(trace, rates(), 1 << 30, o);
  EXPECT_EQ(o.sample, 1);
  EXPECT_EQ(o.sample_remote, 1);
  o.copies = 1000;
  o.replicas = 10;
  o.dram_bytes = 1000;
  o.disk_bytes = 10'000;
  choose_samples(trace, rates(), 1 << 24, o);
  EXPECT_EQ(o.sample, 1) << "the budgets of the replicas are small";
  EXPECT_LT(o.sample_remote, 0.1);
  EXPECT_GT(o.sample_remote, 0);
}

TEST(Fleet, RefusesOptionsByName) {
  const Trace trace = minutes({1});
  const auto field = [&](const auto& change) {
    FleetOptions o;
    change(o);
    return simulate_fleet(trace, rates(), o).status().field();
  };
  EXPECT_EQ(field([](FleetOptions& o) { o.replicas = 0; }), "replicas");
  EXPECT_EQ(field([](FleetOptions& o) { o.per_host = 0; }), "per-host");
  EXPECT_EQ(field([](FleetOptions& o) { o.max_running = 0; }), "max-running");
  EXPECT_EQ(field([](FleetOptions& o) { o.copies = 0; }), "copies");
  EXPECT_EQ(field([](FleetOptions& o) { o.speed = 0; }), "speed");
  EXPECT_EQ(field([](FleetOptions& o) { o.sample = 0; }), "sample");
  EXPECT_EQ(field([](FleetOptions& o) { o.warmup_seconds = 5; }), "warmup");
}

}  // namespace
}  // namespace quire::capacity
