/// Steps that follow one another unseen where the device chooses what sequences attend to.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/harness/device_steps.h"

namespace quire::testing {
namespace {

/// Greedy steps, behind which others follow whose tokens the host has not seen.
class DeviceChoosingAheadTest : public DeviceChoosingStepsTest {
 protected:
  struct Followed {
    std::vector<std::vector<std::int32_t>> tokens;  ///< of each sequence
    std::size_t unseen = 0;
  };
  /// Runs steps, with at most `ahead` behind each, until each sequence has `wanted` tokens.
  Followed run(std::span<const Sequence> sequences, std::size_t wanted, std::size_t ahead) {
    const std::vector<SampleRule> rules(ahead, SampleRule{});
    Followed out;
    for (std::size_t i = 0; i < sequences.size(); ++i)
      out.tokens.push_back({3 + static_cast<std::int32_t>(i)});
    while (out.tokens.front().size() <= wanted && !HasFailure()) {
      std::vector<DecodeRow> rows;
      for (std::size_t i = 0; i < sequences.size(); ++i)
        rows.push_back(
            {.token_id = out.tokens[i].back(),
             .position = static_cast<std::int32_t>(sequences[i].cache->num_rows(0)),
             .cache = sequences[i].cache.get(),
             .retriever = sequences[i].retriever.get(),
             .rule = SampleRule{},
             .ahead = std::span(rules).first(std::min(ahead, wanted - out.tokens[i].size()))});
      const Status status = batch().step(rows);
      EXPECT_TRUE(status.ok()) << status.to_string();
      for (std::size_t i = 0; i < rows.size(); ++i) {
        EXPECT_TRUE(rows[i].status.ok()) << rows[i].status.to_string();
        out.tokens[i].push_back(rows[i].drawn);
        out.tokens[i].insert(out.tokens[i].end(), rows[i].drawn_ahead.begin(),
                             rows[i].drawn_ahead.end());
        out.unseen += rows[i].drawn_ahead.size();
      }
    }
    return out;
  }
};

/// The second sequence attends to everything at first, and pages are filled in these steps.
TEST_F(DeviceChoosingAheadTest, TokensAreThoseOfSingleSteps) {
  constexpr std::size_t kTokens = 16;
  struct Method {
    const char* name;
    Options more;
  };
  for (const Method& method :
       {Method{"quest", {}}, Method{"quest", {{"decode_reuse", "3"}}}, Method{"arkvale", {}},
        Method{"freekv", {{"decode_tau", "0.8"}, {"decode_reuse", "4"}}}}) {
    SCOPED_TRACE(method.name);
    std::vector<Sequence> single, followed;
    for (auto* all : {&single, &followed}) {
      for (const std::int32_t n : {110, 55, 83})
        all->push_back(sequence(method.name, n, method.more));
      all->push_back(sequence("dense", 70));
    }
    const Followed one = run(single, kTokens, 0);
    EXPECT_EQ(one.unseen, 0u);
    const std::int64_t waits = ops_->waits(), graphs = ops_->runs(OpCode::kStep);
    const Followed other = run(followed, kTokens, 3);
    EXPECT_EQ(other.unseen, 4 * kTokens * 3 / 4);
    EXPECT_LE(ops_->waits() - waits, 12) << "4 steps, and where memory grows";
    EXPECT_GT(ops_->runs(OpCode::kStep), graphs);
    EXPECT_EQ(other.tokens, one.tokens);
    for (std::size_t s = 0; s < single.size(); ++s) {
      const RetrieveStats here = single[s].retriever->stats(),
                          there = followed[s].retriever->stats();
      EXPECT_EQ(there.sparse_steps, here.sparse_steps);
      EXPECT_EQ(there.selections, here.selections);
      EXPECT_EQ(there.heads_kept, here.heads_kept);
    }
  }
}

TEST_F(DeviceChoosingAheadTest, NothingFollowsWhereLayersHaveLeftOrTheHostChooses) {
  for (const auto& [name, more] :
       {std::pair<const char*, Options>{"freekv", {{"decode_resident", "none"}}}, {"raas", {}}}) {
    SCOPED_TRACE(name);
    const Sequence one = sequence(name, 110, more);
    EXPECT_EQ(run(std::span(&one, 1), 4, 3).unseen, 0u);
  }
  // Nor where they are to leave once the context is longer than the budget.
  const Sequence grows = sequence("freekv", 60, {{"decode_resident", "none"}}),
                 stays = sequence("freekv", 60);
  const Followed left = run(std::span(&grows, 1), 12, 3);
  EXPECT_EQ(left.unseen, 0u);
  EXPECT_TRUE(grows.cache->on_host(0));
  EXPECT_EQ(left.tokens, run(std::span(&stays, 1), 12, 0).tokens);
}

/// Each allocation of the steps that follow fails once; what follows is taken back or answered.
TEST_F(DeviceChoosingAheadTest, WhereMemoryIsShortThoseBeforeItCount) {
  const auto make = [&] {
    std::vector<Sequence> out;
    for (const std::int32_t n : {110, 60}) out.push_back(sequence("quest", n));
    return out;
  };
  const std::vector<Sequence> single = make();
  const Followed expected = run(single, 8, 0);
  std::int64_t failures = 0;
  for (std::int64_t failing = 0; failing < 60; failing += 2) {
    SCOPED_TRACE("allocation " + std::to_string(failing));
    const std::vector<Sequence> several = make();
    std::int64_t left = failing;
    // The first step makes what sequences have of their own.
    Followed got = run(several, 1, 0);
    refusing_->at_allocation = [&](cuda::MemoryKind kind, std::int64_t) {
      if (kind == cuda::MemoryKind::kPinned || left-- != 0) return Status();
      ++failures;
      return Status::exhausted("no memory");
    };
    std::vector<DecodeRow> rows;
    const std::vector<SampleRule> rules(3, SampleRule{});
    for (std::size_t i = 0; i < several.size(); ++i)
      rows.push_back({.token_id = got.tokens[i].back(),
                      .position = static_cast<std::int32_t>(several[i].cache->num_rows(0)),
                      .cache = several[i].cache.get(),
                      .retriever = several[i].retriever.get(),
                      .rule = SampleRule{},
                      .ahead = rules});
    ASSERT_TRUE(batch().step(rows).ok());
    refusing_->at_allocation = nullptr;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (!rows[i].status.ok()) continue;
      std::vector<std::int32_t> tokens = {rows[i].drawn};
      tokens.insert(tokens.end(), rows[i].drawn_ahead.begin(), rows[i].drawn_ahead.end());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.tokens[i].begin() + 2));
      EXPECT_EQ(several[i].cache->num_rows(0),
                rows[i].position + static_cast<std::int64_t>(tokens.size()));
    }
  }
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace quire::testing
