/// Decode steps run as graphs where possible, and answers have the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "engine/device/step_recording.h"
#include "tests/support/harness/device_steps.h"

namespace quire::testing {
namespace {

/// The steps run with one sequence, then three, then one again, past the border of a chunk of keys.
TEST_F(DeviceStepsTest, AGraphIsRecordedOncePerNumberOfRowsAndAgainPastAChunk) {
  const auto a = filled(240), b = filled(5), c = filled(33);
  const auto all = [&] {
    std::vector<std::vector<float>> logits;
    for (std::int32_t i = 0; i < 8; ++i) logits.push_back(step({a.get()}, 3 + i));
    for (std::int32_t i = 0; i < 6; ++i) logits.push_back(step({a.get(), b.get(), c.get()}, 9 + i));
    for (std::int32_t i = 0; i < 8; ++i) logits.push_back(step({a.get()}, 20 + i));
    a->truncate_all(240);
    b->truncate_all(5);
    c->truncate_all(33);
    return logits;
  };
  const auto first = all();
  EXPECT_GE(ops_->runs(OpCode::kStep), 12) << "of 22 steps";
  EXPECT_GE(ops_->recordings(), 3) << "one row, three rows, one row past 256 keys";
  EXPECT_LE(ops_->recordings(), 5);
  // No recorded graph fits, so from now on every step runs without a graph.
  ops_->fail_recording(true);
  const std::int64_t recordings = ops_->recordings();
  step({b.get(), c.get()}, 3);
  b->truncate_all(5);
  c->truncate_all(33);
  EXPECT_EQ(all(), first);
  EXPECT_EQ(ops_->recordings(), recordings);
}

/// Queries are rotated, and keys and values rounded, rotated and placed, by one kernel.
TEST_F(DeviceStepsTest, ALayerRotatesAndWritesInOneLaunch) {
  const auto a = filled(9);  // a pass
  EXPECT_EQ(ops_->runs(OpCode::kWriteNewRows), config_.num_layers);
  const auto b = filled(5);
  (void)step({a.get(), b.get()}, 3);
  EXPECT_EQ(ops_->runs(OpCode::kWriteNewRows), 3 * config_.num_layers);
  for (const OpCode apart : {OpCode::kRotateRows, OpCode::kKvPack, OpCode::kPlaceRows})
    EXPECT_EQ(ops_->runs(apart), 0);
}

TEST_F(DeviceStepsTest, WhereNoGraphCanBeMadeStepsRunOneByOneAndAreNotTriedForEver) {
  const auto cache = filled(9);
  ops_->fail_recording(true);
  for (std::int32_t i = 0; i < 20; ++i) (void)step({cache.get()}, 3 + i);
  EXPECT_EQ(ops_->recordings(), 0);
  EXPECT_EQ(ops_->runs(OpCode::kStep), StepRecording::kMostFailures);
}

/// The device's table of a sequence's pages concerns that sequence alone.
TEST_F(DeviceStepsTest, ASequenceWithoutRoomForItsTableFailsAlone) {
  const auto cache = filled(9), same = filled(9);
  EXPECT_EQ(step({cache.get()}, 3), step({same.get()}, 3));
  // Rows that no pass of the device has seen: the step makes the tables.
  WorkingCache fresh(pool(), config_.num_layers);
  std::vector<std::int32_t> positions(5);
  std::iota(positions.begin(), positions.end(), 0);
  for (std::int32_t layer = 0; layer < config_.num_layers; ++layer)
    ASSERT_TRUE(fresh.add_rows(layer, positions).ok());
  const auto dense = std::move(*retrievers().make("dense"));
  for (std::int32_t i = 0; i < 3; ++i) {
    const std::vector<float> alone = step({same.get()}, 3 + i);
    std::vector<DecodeRow> rows(2);
    rows[0] = {.token_id = 3 + i, .position = 10 + i, .cache = cache.get()};
    rows[1] = {.token_id = 3 + i, .position = 5, .cache = &fresh};
    for (DecodeRow& row : rows) row.retriever = dense.get();
    ops_->fail_allocation(i == 0 ? 0 : 1);  // of the first, second, third layer
    ASSERT_TRUE(batch().step(rows).ok());
    ops_->fail_allocation(-1);
    ASSERT_TRUE(rows[0].status.ok()) << rows[0].status.to_string();
    EXPECT_EQ(std::vector<float>(rows[0].logits.begin(), rows[0].logits.end()), alone);
    EXPECT_EQ(rows[1].status.code(), Code::kResourceExhausted) << rows[1].status.to_string();
    for (std::int32_t layer = 0; layer < config_.num_layers; ++layer)
      EXPECT_EQ(fresh.num_rows(layer), 5);
  }
}

/// The first sequence has two chunks of keys, the others one. Their partial results take memory
/// that the rows of a step share.
TEST_F(DeviceStepsTest, WhereMemoryIsShortSequencesStepInPartsAndOneThatFindsNoneFailsAlone) {
  const std::int64_t chunk = std::int64_t{config_.num_heads} * (config_.head_dim + 1) *
                             static_cast<std::int64_t>(sizeof(float));
  const std::vector<std::int32_t> lengths = {300, 20, 33, 9};
  std::vector<std::unique_ptr<WorkingCache>> caches;
  std::vector<std::vector<float>> alone;
  for (const std::int32_t n : lengths) {
    caches.push_back(filled(n));
    alone.push_back(step({caches.back().get()}, 3));
    caches.back()->truncate_all(n);
  }
  const auto dense = std::move(*retrievers().make("dense"));
  struct Variant {
    std::set<std::int64_t> refused;  ///< chunks of a step's rows together
    bool first_fails;
  };
  for (const auto& [refused, first_fails] :
       {Variant{{8}, false}, Variant{{8, 4, 2}, true}, Variant{{}, false}}) {
    SCOPED_TRACE(refused.size());
    refusing_->at_allocation = [&](cuda::MemoryKind kind, std::int64_t bytes) {
      const bool fits = kind == cuda::MemoryKind::kPinned || bytes % chunk != 0 ||
                        !refused.contains(bytes / chunk);
      return fits ? Status() : Status::exhausted("no memory for partial results");
    };
    std::vector<DecodeRow> rows(caches.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i] = {.token_id = 3,
                 .position = lengths[i],
                 .cache = caches[i].get(),
                 .retriever = dense.get()};
    const Status status = batch().step(rows);
    refusing_->at_allocation = nullptr;
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("row " + std::to_string(i));
      if (i == 0 && first_fails) {
        EXPECT_EQ(rows[i].status.code(), Code::kResourceExhausted) << rows[i].status.to_string();
        EXPECT_EQ(caches[i]->num_rows(0), lengths[i]);
        continue;
      }
      ASSERT_TRUE(rows[i].status.ok()) << rows[i].status.to_string();
      EXPECT_EQ(caches[i]->num_rows(0), lengths[i] + 1);
      ASSERT_EQ(rows[i].logits.size(), alone[i].size());
      for (std::size_t v = 0; v < alone[i].size(); ++v)
        ASSERT_NEAR(rows[i].logits[v], alone[i][v], 5e-3);
      caches[i]->truncate_all(lengths[i]);
    }
  }
}

/// Greedy steps of these sequences, `ahead` behind each before the host looks.
class DeviceStepsAheadTest : public DeviceStepsTest {
 protected:
  static constexpr SampleRule kGreedy{};
  struct Sequence {
    std::unique_ptr<WorkingCache> cache;
    std::vector<std::int32_t> tokens;
  };
  std::vector<Sequence> sequences(std::initializer_list<std::int32_t> lengths) {
    std::vector<Sequence> out;
    for (const std::int32_t n : lengths) out.push_back({filled(n), {3 + n % 31}});
    return out;
  }
  /// Runs a step of those that have fewer than `wanted` tokens, with at most `ahead` behind it.
  void step(std::vector<Sequence>& sequences, std::size_t wanted, std::size_t ahead) {
    const std::vector<SampleRule> rules(ahead, kGreedy);
    std::vector<DecodeRow> rows;
    std::vector<Sequence*> members;
    for (Sequence& s : sequences) {
      if (s.tokens.size() >= wanted) continue;
      members.push_back(&s);
      const std::size_t most = std::min(ahead, wanted - s.tokens.size() - 1);
      rows.push_back({.token_id = s.tokens.back(),
                      .position = static_cast<std::int32_t>(s.cache->num_rows(0)),
                      .cache = s.cache.get(),
                      .retriever = dense_.get(),
                      .rule = kGreedy,
                      .ahead = std::span(rules).first(most)});
    }
    const Status status = batch().step(rows);
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      Sequence& s = *members[i];
      const auto before = static_cast<std::int64_t>(rows[i].position);
      if (rows[i].status.ok()) {
        s.tokens.push_back(rows[i].drawn);
        s.tokens.insert(s.tokens.end(), rows[i].drawn_ahead.begin(), rows[i].drawn_ahead.end());
      }
      followed_ += rows[i].drawn_ahead.size();
      failed_ += rows[i].status.ok() ? 0 : 1;
      // Every token has a row but the last.
      EXPECT_EQ(
          s.cache->num_rows(0),
          before + (rows[i].status.ok() ? 1 + static_cast<std::int64_t>(rows[i].drawn_ahead.size())
                                        : 0));
    }
  }
  std::size_t followed_ = 0, failed_ = 0;
  std::unique_ptr<Retriever> dense_ = std::move(*retrievers().make("dense"));
};

TEST_F(DeviceStepsAheadTest, TokensAreThoseOfSingleStepsAndTheHostWaitsOnceForSeveral) {
  std::vector<Sequence> one = sequences({5, 251}), several = sequences({5, 251});
  for (int i = 0; i < 20; ++i) step(one, 21, 0);
  EXPECT_EQ(followed_, 0u);
  const std::int64_t graphs = ops_->runs(OpCode::kStep);
  for (int i = 0; i < 5; ++i) {
    const std::int64_t waits = ops_->waits();
    step(several, 21, 3);
    const std::int64_t waited = ops_->waits() - waits;
    EXPECT_LE(waited, i == 0 ? 8 : 1) << "the first step makes the buffers; step " << i;
  }
  EXPECT_EQ(followed_, 2u * 5 * 3);
  // The second sequence passes the border of a chunk of keys in these steps.
  EXPECT_GE(ops_->runs(OpCode::kStep) - graphs, 8) << "of 20 steps";
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(several[i].tokens, one[i].tokens) << i;
}

/// Pages and tables grow within these steps, and each allocation fails once.
TEST_F(DeviceStepsAheadTest, WhereAStepFindsNoMemoryThoseBeforeItCount) {
  std::vector<Sequence> one = sequences({30, 13});
  for (int i = 0; i < 8; ++i) step(one, 9, 0);
  std::int64_t failures = 0;
  for (std::int64_t failing = 0; failing < 5; ++failing) {
    SCOPED_TRACE(failing);
    std::vector<Sequence> several = sequences({30, 13});
    std::int64_t left = failing;
    refusing_->at_allocation = [&](cuda::MemoryKind kind, std::int64_t) {
      if (kind == cuda::MemoryKind::kPinned || left-- != 0) return Status();
      ++failures;
      return Status::exhausted("no memory");
    };
    const auto done = [&] {
      return std::ranges::all_of(several, [](const Sequence& s) { return s.tokens.size() == 9; });
    };
    for (int i = 0; i < 20 && !done(); ++i) step(several, 9, 3);
    refusing_->at_allocation = nullptr;
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_EQ(several[i].tokens, one[i].tokens) << i;
  }
  EXPECT_GT(failures, 0);
}

TEST_F(DeviceStepsAheadTest, NothingFollowsWhereTheHostHasToLook) {
  const auto cache = filled(9);
  const std::vector<SampleRule> rules(3, kGreedy);
  HostRetriever by_host;
  for (const bool host : {true, false}) {
    DecodeRow row{.token_id = 3,
                  .position = static_cast<std::int32_t>(cache->num_rows(0)),
                  .cache = cache.get(),
                  .retriever = host ? &by_host : dense_.get(),
                  .ahead = rules};
    if (host) row.rule = kGreedy;  // else the logits are wanted
    ASSERT_TRUE(batch().step(std::span(&row, 1)).ok());
    EXPECT_TRUE(row.drawn_ahead.empty());
    EXPECT_EQ(row.logits.empty(), host);
  }
}

TEST_F(DeviceStepsTest, AStepInWhichSomebodyWaitsIsNoGraph) {
  const auto cache = filled(40);
  for (std::int32_t i = 0; i < 6; ++i) (void)step({cache.get()}, 3 + i, Who::kHost);
  EXPECT_EQ(ops_->runs(OpCode::kStep), 0);
}

/// The third sequence still attends to everything, and then chooses, too.
TEST_F(DeviceChoosingStepsTest, SequencesThatChooseWaitOnceAStepAndBecomeOneGraph) {
  constexpr int kSteps = 24;
  for (const char* name : {"freekv", "quest"}) {
    SCOPED_TRACE(name);
    std::vector<Sequence> together, alone;
    for (auto* all : {&together, &alone}) {
      for (const std::int32_t n : {110, 83, 55}) all->push_back(sequence(name, n));
    }
    std::int64_t graphs = 0, waited_more = 0;
    for (int i = 0; i < kSteps; ++i) {
      const std::string step = "step " + std::to_string(i) + " ";
      const std::int64_t waits = ops_->waits(), steps = ops_->runs(OpCode::kStep),
                         choices = ops_->runs(OpCode::kChoosePages),
                         attended = ops_->runs(OpCode::kDecodeAttention);
      const std::vector<Stepped> got = step_all(together, 3 + i % 30);
      EXPECT_EQ(ops_->runs(OpCode::kChoosePages) - choices, config_.num_layers) << step;
      EXPECT_EQ(ops_->runs(OpCode::kDecodeAttention) - attended, config_.num_layers) << step;
      waited_more += ops_->waits() - waits > 1 ? 1 : 0;
      graphs += ops_->runs(OpCode::kStep) - steps;
      for (std::size_t s = 0; s < alone.size(); ++s)
        expect_as_alone(got[s], step_all(std::span(&alone[s], 1), 3 + i % 30)[0], step);
    }
    EXPECT_LE(waited_more, 2) << "where memory grows; else only the logits are waited for";
    EXPECT_GE(graphs, kSteps / 2);
    for (std::size_t s = 0; s < alone.size(); ++s) {
      const RetrieveStats one = alone[s].retriever->stats(), other = together[s].retriever->stats();
      EXPECT_EQ(one.sparse_steps, other.sparse_steps);
      EXPECT_EQ(one.selections, other.selections);
      EXPECT_EQ(one.heads_corrected, other.heads_corrected);
      EXPECT_EQ(one.heads_kept, other.heads_kept);
      EXPECT_GT(one.selections, 0);
    }
  }
}

/// Layers that have left choose in the same call as layers that stay; only attention, which reads
/// slots or pages, is a call for each run of neighbours.
TEST_F(DeviceChoosingStepsTest, SequencesInSlotsWaitOnceAStepAndBecomeOneGraph) {
  constexpr int kSteps = 18;
  struct Variant {
    const char* name;
    bool one_stays, graphs;
  };
  for (const auto& [name, one_stays, may_record] :
       {Variant{"all leave", false, true}, Variant{"the second stays", true, true},
        Variant{"operations one by one", false, false}}) {
    SCOPED_TRACE(name);
    ops_->fail_recording(!may_record);
    std::vector<Sequence> together, alone;
    for (auto* all : {&together, &alone}) {
      for (const std::int32_t n : {110, 83, 150, 68}) {
        const bool stays = (one_stays && n == 83) || all == &alone;
        all->push_back(sequence("freekv", n, {{"decode_resident", stays ? "auto" : "none"}}));
      }
    }
    std::int64_t graphs = 0, recorded = 0, waited_more = 0;
    for (int i = 0; i < kSteps; ++i) {
      const std::string step = "step " + std::to_string(i) + " ";
      const std::int64_t waits = ops_->waits(), steps = ops_->runs(OpCode::kStep),
                         recordings = ops_->recordings(),
                         choices = ops_->runs(OpCode::kChoosePages),
                         fillings = ops_->runs(OpCode::kFillSlots),
                         attended = ops_->runs(OpCode::kDecodeAttention);
      const std::vector<Stepped> got = step_all(together, 3 + i % 30);
      EXPECT_EQ(ops_->runs(OpCode::kChoosePages) - choices, config_.num_layers) << step;
      EXPECT_EQ(ops_->runs(OpCode::kFillSlots) - fillings, 2 * config_.num_layers) << step;
      EXPECT_EQ(ops_->runs(OpCode::kDecodeAttention) - attended,
                (one_stays ? 3 : 1) * config_.num_layers)
          << step;
      waited_more += ops_->waits() - waits > 1 ? 1 : 0;
      graphs += ops_->runs(OpCode::kStep) - steps;
      recorded += ops_->recordings() - recordings;
      for (std::size_t s = 0; s < alone.size(); ++s)
        expect_as_alone(got[s], step_all(std::span(&alone[s], 1), 3 + i % 30)[0], step);
    }
    EXPECT_LE(waited_more, 2) << "where memory grows; else only the logits are waited for";
    EXPECT_GE(graphs, may_record ? kSteps / 2 : 0);
    EXPECT_EQ(recorded > 0, may_record) << "a graph that nothing is left to wait for";
    for (std::size_t s = 0; s < alone.size(); ++s) {
      const RetrieveStats one = alone[s].retriever->stats(), other = together[s].retriever->stats();
      EXPECT_EQ(one.selections, other.selections);
      EXPECT_EQ(one.heads_corrected, other.heads_corrected);
      EXPECT_EQ(one.heads_kept, other.heads_kept);
      EXPECT_EQ(other.bytes_copied > 0, !(one_stays && s == 1));
      EXPECT_EQ(together[s].cache->on_host(0), !(one_stays && s == 1));
    }
  }
}

/// The room for a layer's slots concerns its sequence alone.
TEST_F(DeviceChoosingStepsTest, ASequenceWithoutRoomForItsSlotsFailsAlone) {
  const Options leaving = {{"decode_resident", "none"}};
  DevicePool full(64 << 10, model_->compute().memory());
  const auto taken = full.allocate(48 << 10);
  ASSERT_TRUE(taken.ok());
  std::vector<Sequence> together;
  together.push_back(sequence("freekv", 150, leaving));
  together.push_back(sequence("freekv", 121, leaving, &full));
  together.push_back(sequence("freekv", 99, leaving));
  const Sequence first = sequence("freekv", 150), last = sequence("freekv", 99);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Stepped> got = step_all(together, 3 + i);
    EXPECT_EQ(got[1].status.code(), Code::kResourceExhausted) << got[1].status.to_string();
    EXPECT_EQ(together[1].cache->num_rows(0), 121);
    expect_as_alone(got[0], step_all(std::span(&first, 1), 3 + i)[0], "the first ");
    expect_as_alone(got[2], step_all(std::span(&last, 1), 3 + i)[0], "the last ");
  }
}

/// One call fills the slots of all sequences, so what it cannot do is refused before.
TEST_F(DeviceChoosingStepsTest, ASequenceThatWantsMorePagesThanADeviceFillsIsRefusedAlone) {
  constexpr std::int32_t kBudget = kMostSlots * 16;
  auto cache = std::make_unique<WorkingCache>(pool(), config_.num_layers);
  std::vector<std::int32_t> positions(kBudget);
  std::iota(positions.begin(), positions.end(), 0);
  for (std::int32_t layer = 0; layer < config_.num_layers; ++layer)
    ASSERT_TRUE(cache->add_rows(layer, positions).ok());
  const Options wide = {{"decode_budget", std::to_string(kBudget)}, {"decode_resident", "none"}};
  std::vector<Sequence> together;
  together.push_back(sequence("freekv", std::move(cache), wide));
  together.push_back(sequence("freekv", 99));
  const std::vector<Stepped> got = step_all(together, 3);
  EXPECT_EQ(got[0].status.code(), Code::kInvalidArgument) << got[0].status.to_string();
  EXPECT_EQ(got[0].status.field(), "cache.options.decode_budget");
  EXPECT_TRUE(got[1].status.ok()) << got[1].status.to_string();
}

TEST_F(DeviceChoosingStepsTest, NeighboursWithOtherOptionsOrMethodsAttendByThemselves) {
  std::vector<Sequence> together, alone;
  for (auto* all : {&together, &alone}) {
    all->push_back(sequence("freekv", 150));
    all->push_back(sequence("freekv", 90, {{"decode_reuse", "2"}}));
    all->push_back(sequence("dense", 70));
    all->push_back(sequence("freekv", 80, {{"decode_reuse", "2"}}));
    all->push_back(sequence("raas", 90));
  }
  for (int i = 0; i < 12; ++i) {
    const std::int64_t choices = ops_->runs(OpCode::kChoosePages);
    const std::vector<Stepped> got = step_all(together, 3 + i);
    EXPECT_EQ(ops_->runs(OpCode::kChoosePages) - choices, 3 * config_.num_layers);
    for (std::size_t s = 0; s < alone.size(); ++s)
      expect_as_alone(got[s], step_all(std::span(&alone[s], 1), 3 + i)[0],
                      "step " + std::to_string(i) + " ");
  }
}

/// The same with weights whose products read bf16.
class DeviceRoundingStepsTest : public DeviceChoosingStepsTest {
 protected:
  DeviceRoundingStepsTest() : DeviceChoosingStepsTest(WeightFormat::kBF16) {}
};

TEST_F(DeviceRoundingStepsTest, AttentionIsConvertedOnlyWhereSomebodyAttendsByItself) {
  std::vector<Sequence> joined, parted;
  for (auto* all : {&joined, &parted}) {
    all->push_back(sequence("quest", 110));
    all->push_back(sequence("dense", 40));
    all->push_back(sequence("dense", 55));
  }
  parted.back().retriever = std::make_unique<HostRetriever>();
  for (int i = 0; i < 4; ++i) {
    const std::int64_t before = ops_->runs(OpCode::kConvert);
    const std::vector<Stepped> direct = step_all(joined, 3 + i);
    EXPECT_EQ(ops_->runs(OpCode::kConvert), before) << i;
    const std::vector<Stepped> converted = step_all(parted, 3 + i);
    EXPECT_EQ(ops_->runs(OpCode::kConvert) - before, config_.num_layers) << i;
    for (const std::size_t s : {0, 1}) {
      ASSERT_FALSE(direct[s].logits.empty());
      EXPECT_EQ(direct[s].logits, converted[s].logits) << "step " << i << " sequence " << s;
    }
  }
}

TEST_F(DeviceChoosingStepsTest, ASequenceWithoutRoomForItsChoicesFailsAlone) {
  DevicePool full(1, model_->compute().memory());
  std::vector<Sequence> together;
  together.push_back(sequence("quest", 150));
  together.push_back(sequence("quest", 120, {}, &full));
  together.push_back(sequence("quest", 99));
  const Sequence first = sequence("quest", 150), last = sequence("quest", 99);
  for (int i = 0; i < 3; ++i) {
    const std::vector<Stepped> got = step_all(together, 3 + i);
    EXPECT_EQ(got[1].status.code(), Code::kResourceExhausted) << got[1].status.to_string();
    EXPECT_EQ(together[1].cache->num_rows(0), 120);
    expect_as_alone(got[0], step_all(std::span(&first, 1), 3 + i)[0], "the first ");
    expect_as_alone(got[2], step_all(std::span(&last, 1), 3 + i)[0], "the last ");
  }
}

/// Whichever allocation of the first step fails (a third of them is tried), sequences go on as they
/// would have: what they share is asked for again in parts, and what belongs to one concerns that
/// one.
TEST_F(DeviceChoosingStepsTest, AnAllocationThatFailsOnceFailsOneSequenceAtMost) {
  const std::vector<std::int32_t> lengths = {83, 70};
  const Options leaving = {{"decode_resident", "none"}};
  constexpr std::int32_t kSteps = 2;
  std::vector<std::vector<Stepped>> alone;  // by sequence and step
  for (const std::int32_t n : lengths) {
    const Sequence one = sequence("freekv", n, leaving);
    alone.emplace_back();
    for (std::int32_t i = 0; i < kSteps; ++i)
      alone.back().push_back(step_all(std::span(&one, 1), 3 + i)[0]);
  }
  std::int64_t allocations = 1;
  for (std::int64_t nth = 0; nth < allocations; nth += 3) {
    SCOPED_TRACE("allocation " + std::to_string(nth));
    // What sequences share is allocated anew.
    batch_.reset();
    pool_.reset();
    model_ = make_model(WeightFormat::kF32);
    DevicePool slots(0, model_->compute().memory());
    std::vector<Sequence> together;
    for (const std::int32_t n : lengths) together.push_back(sequence("freekv", n, leaving, &slots));
    allocations = 0;
    refusing_->at_allocation = [&](cuda::MemoryKind, std::int64_t) {
      return allocations++ == nth ? Status::exhausted("this one fails") : Status();
    };
    std::set<std::size_t> failed;
    for (std::int32_t i = 0; i < kSteps; ++i) {
      const std::vector<Stepped> got = step_all(together, 3 + i);
      refusing_->at_allocation = nullptr;
      for (std::size_t s = 0; s < got.size(); ++s) {
        if (!got[s].status.ok()) failed.insert(s);
        if (failed.contains(s)) continue;
        expect_as_alone(got[s], alone[s][static_cast<std::size_t>(i)],
                        "step " + std::to_string(i) + " ");
      }
    }
    EXPECT_LE(failed.size(), 1U);
    // Slots are filled ahead for the next step, and nothing may be released before that is done.
    EXPECT_TRUE(model_->compute().synchronize().ok());
  }
}

TEST_F(DeviceChoosingStepsTest, OfALostDeviceOnlyWhatTheHostCountedIsKnown) {
  const Sequence one = sequence("quest", 150);
  (void)step_all(std::span(&one, 1), 3);
  EXPECT_EQ(one.retriever->stats().selections, config_.num_layers);
  ops_->lose();
  EXPECT_EQ(one.retriever->stats().selections, 0);
  EXPECT_EQ(one.retriever->stats().sparse_steps, config_.num_layers);
}

TEST(StepRecordingTest, UploadsComeFirstAndNeighboursAreOne) {
  std::vector<std::byte> device(100), pinned(100);
  OpList list;
  const std::int64_t x = 1;
  list.add_upload({device.data(), pinned.data(), 16});
  list.add(OpCode::kAddBias, &x, 8);
  list.add_upload({device.data() + 16, pinned.data() + 16, 8});
  list.add_upload({device.data() + 50, pinned.data() + 24, 8});  // elsewhere on the device
  const auto ops = list.view();
  ASSERT_EQ(ops.size(), 3U);
  ASSERT_EQ(ops[0].code, OpCode::kCopy);
  EXPECT_EQ(static_cast<const cuda::CopyArgs*>(ops[0].args)->bytes, 24);
  EXPECT_EQ(static_cast<const cuda::CopyArgs*>(ops[1].args)->to, device.data() + 50);
  EXPECT_EQ(ops[2].code, OpCode::kAddBias);
  OpList other = list;
  EXPECT_TRUE(other == list);
  other.add_upload({device.data() + 24, pinned.data() + 24, 8});
  EXPECT_FALSE(other == list);
}

TEST(StepRecordingTest, AListIsAnotherWhenAnyByteOfItIs) {
  OpList a, b;
  const std::int64_t x = 1, y = 2;
  a.add(OpCode::kCopy, &x, 8);
  b.add(OpCode::kCopy, &x, 8);
  EXPECT_TRUE(a == b);
  b.add(OpCode::kCopy, &x, 8);
  EXPECT_FALSE(a == b);
  a.add(OpCode::kCopy, &y, 8);
  EXPECT_FALSE(a == b);
  b.clear();
  b.add(OpCode::kCopy, &x, 8);
  b.add(OpCode::kSwiglu, &y, 8);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(a.view().size(), 2u);
}

TEST(StepRecordingTest, ALostDeviceIsReportedAndNotTriedAgain) {
  const auto ops = simt::make_emulated_ops();
  StepRecording recording;
  const cuda::HoldArgs hold{0, cuda::Lane::kCompute};
  for (int i = 0; i < 2; ++i) {
    recording.begin(1);
    recording.add(OpCode::kHold, &hold, sizeof hold);
    if (i == 1) ops->lose();
    EXPECT_EQ(recording.end(*ops).code(), i == 0 ? Code::kOk : Code::kDeviceLost);
  }
  EXPECT_EQ(recording.stats().failures, 0);
}

}  // namespace
}  // namespace quire::testing
