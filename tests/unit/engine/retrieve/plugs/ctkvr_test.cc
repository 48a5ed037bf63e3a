// CTkvr and its exact counterpart agree with plain loops.
#include "engine/retrieve/plugs/ctkvr.h"

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "tests/support/harness/row_harness.h"
#include "tests/support/host_compute.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kPrompt = RowSequence::kPrompt, kKvHeads = RowSequence::kKvHeads;
// With sink 10 and window 40, host rows are [10, 288), because the local range begins with a page.
constexpr std::int32_t kSink = 10, kHostEnd = 288, kChosen = 30;

RetrieverOptions small(const RetrieverOptions& more = {}) {
  RetrieverOptions all = {{"decode_budget", std::to_string(kSink + 40 + kChosen)},
                          {"decode_sink", "10"},
                          {"decode_window", "40"}};
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}
RetrieverOptions indexed(const RetrieverOptions& more = {}) {
  RetrieverOptions all = small({{"decode_centroids", "24"},
                                {"decode_least_centroids", "1"},
                                {"decode_list", "50"},
                                {"decode_reuse", "1"}});
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}
CtkvrRetriever& ctkvr(RowDecoding& run) { return dynamic_cast<CtkvrRetriever&>(*run.retriever); }

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, std::span<const std::int32_t> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Expects `rows` to be the k best by weight, except where rounding may swap two.
void expect_best(std::span<const std::int32_t> rows, const std::map<std::int32_t, double>& weights,
                 std::size_t k, const std::string& what) {
  std::vector<double> sorted;
  for (const auto& [row, weight] : weights) sorted.push_back(weight);
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  ASSERT_EQ(rows.size(), std::min(k, sorted.size())) << what;
  ASSERT_TRUE(std::is_sorted(rows.begin(), rows.end())) << what;
  const double least = sorted[rows.size() - 1] * (1 - 1e-4);
  for (const std::int32_t row : rows) {
    ASSERT_TRUE(weights.contains(row))
        << what << ": " << row << " is not one of those to choose from";
    ASSERT_GE(weights.at(row), least) << what << ": row " << row;
  }
}

TEST(CentroidIndexTest, ListsAreTheRowsThatEachQueryLookedAtMost) {
  RowSequence sequence;
  const auto queries = sequence.queries(24);
  DevicePool device(0);
  CentroidInput input;
  input.queries = queries.get();
  input.layer = 1;
  input.kv = sequence.cache().view(1);
  input.num_heads = RowSequence::kHeads;
  // Some centroids have host rows after them.
  input.host = {kSink, kPrompt - 8};
  input.list_rows = 50;
  input.num_centroids = 20;
  const auto index = CentroidIndex::build(device, input);
  ASSERT_TRUE(index.ok());
  ASSERT_EQ(index->num_centroids(), 20);
  EXPECT_EQ(index->device_bytes(), RowSequence::kHeads * 32 * RowSequence::kDim * 2);
  EXPECT_EQ(device.bytes_in_use(), index->device_bytes());
  for (std::int64_t c = 0; c < 20; ++c) {
    const std::int32_t position = kPrompt - 20 + static_cast<std::int32_t>(c);
    std::vector<float> query;
    for (const std::uint16_t x : queries->query(1, 4 + c)) query.push_back(bf16_to_f32(x));
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      // The softmax covers everything that the centroid saw; the list takes only host rows.
      auto weights = sequence.weights(1, m, query, rows_between(0, position + 1));
      std::erase_if(weights,
                    [](const auto& w) { return w.first < kSink || w.first >= kPrompt - 8; });
      expect_best(index->list(m, c), weights, 50,
                  "centroid " + std::to_string(c) + " head " + std::to_string(m));
    }
  }
}

TEST(CentroidIndexTest, NearestCentroidsAreThoseOfTheLargestCosine) {
  RowSequence sequence;
  const auto queries = sequence.queries(24);
  DevicePool device(0);
  CentroidInput input{.queries = queries.get(),
                      .layer = 0,
                      .kv = sequence.cache().view(0),
                      .num_heads = RowSequence::kHeads,
                      .host = {kSink, kHostEnd},
                      .list_rows = 5,
                      .num_centroids = 24};
  const auto index = CentroidIndex::build(device, input);
  ASSERT_TRUE(index.ok());
  const auto query = sequence.query(0, kPrompt + 3);
  for (std::int32_t m = 0; m < kKvHeads; ++m) {
    std::vector<std::pair<double, std::int64_t>> cosines;
    for (std::int64_t c = 0; c < 24; ++c) {
      double best = -2;
      for (std::int32_t h = m * RowSequence::kGroup; h < (m + 1) * RowSequence::kGroup; ++h) {
        double dot = 0, a = 0, b = 0;
        for (std::int32_t i = 0; i < RowSequence::kDim; ++i) {
          const double x = query[static_cast<std::size_t>(h * RowSequence::kDim + i)],
                       y = bf16_to_f32(queries->query(
                           0, c)[static_cast<std::size_t>(h * RowSequence::kDim + i)]);
          dot += x * y;
          a += x * x;
          b += y * y;
        }
        best = std::max(best, dot / std::sqrt(a * b));
      }
      cosines.push_back({best, c});
    }
    std::sort(cosines.rbegin(), cosines.rend());
    for (const std::size_t probes : {1u, 3u, 24u}) {
      std::set<std::int32_t> expected;
      for (std::size_t i = 0; i < probes; ++i) {
        const auto list = index->list(m, cosines[i].second);
        expected.insert(list.begin(), list.end());
      }
      std::vector<std::uint64_t> seen((kHostEnd + 63) / 64, 0);
      ASSERT_TRUE(index
                      ->recall(m, query.data() + m * RowSequence::kGroup * RowSequence::kDim,
                               static_cast<std::int64_t>(probes), seen)
                      .ok());
      for (std::int32_t row = 0; row < kHostEnd; ++row)
        EXPECT_EQ((seen[static_cast<std::size_t>(row / 64)] >> (row % 64) & 1) != 0,
                  expected.contains(row))
            << "row " << row;
    }
  }
}

TEST(Ctkvr, ABudgetOverTheContextIsDense) {
  for (const char* name : {"ctkvr", "flat"}) {
    RowDecoding run(name,
                    {{"decode_budget", "400"}, {"decode_sink", "10"}, {"decode_window", "40"}}),
        dense("dense", {});
    EXPECT_EQ(run.queries_wanted().count, 0) << "nobody needs them";
    for (int n = 0; n < 20; ++n) EXPECT_EQ(run.token(), dense.token()) << name << " token " << n;
    EXPECT_EQ(run.retriever->stats().sparse_steps, 0);
    EXPECT_EQ(run.device.peak_bytes(), 0);
  }
}

TEST(Flat, AttendsToTheBestHostRows) {
  RowDecoding run("flat", small());
  for (int n = 0; n < 12; ++n) {
    std::vector<std::vector<float>> expected(RowSequence::kLayers);
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      std::vector<std::vector<std::int32_t>> rows;
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        const auto weights = run.sequence.weights(layer, m, q, rows_between(kSink, kHostEnd));
        std::vector<std::int32_t> best = rows_between(kSink, kHostEnd);
        std::stable_sort(best.begin(), best.end(), [&](std::int32_t a, std::int32_t b) {
          return weights.at(a) > weights.at(b);
        });
        best.resize(kChosen);
        rows.push_back(joined(joined(rows_between(0, kSink), best),
                              rows_between(kHostEnd, run.sequence.num_rows())));
      }
      expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
    });
    for (std::size_t layer = 0; layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
  }
  const RetrieveStats s = run.retriever->stats();
  EXPECT_EQ(s.sparse_steps, 12 * RowSequence::kLayers);
  EXPECT_EQ(s.selections, s.sparse_steps);
  EXPECT_EQ(s.rows_scored, s.sparse_steps * kKvHeads * (kHostEnd - kSink));
  EXPECT_EQ(s.rows_attended, s.sparse_steps * kKvHeads * kChosen);
}

/// Expects outputs of attention to the same rows, which flat sums in another order. One other row
/// would change them a hundred times as much.
void expect_same_rows(const std::vector<std::vector<float>>& got,
                      const std::vector<std::vector<float>>& want, int token) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t layer = 0; layer < got.size(); ++layer) {
    ASSERT_EQ(got[layer].size(), want[layer].size());
    for (std::size_t i = 0; i < got[layer].size(); ++i)
      ASSERT_NEAR(got[layer][i], want[layer][i], 3e-6) << "token " << token << " layer " << layer;
  }
}

TEST(Ctkvr, AllOfTheIndexIsFlat) {
  RowDecoding all(
      "ctkvr",
      indexed({{"decode_list", "400"}, {"decode_probes", "24"}, {"decode_updates", "off"}})),
      flat("flat", small());
  for (int n = 0; n < 15; ++n) {
    const auto outs = all.token([&](std::int32_t, const std::vector<float>&) {
      for (std::int32_t m = 0; m < kKvHeads; ++m)
        EXPECT_EQ(joined({}, ctkvr(all).candidate_rows(m)), rows_between(kSink, kHostEnd));
    });
    expect_same_rows(outs, flat.token(), n);
  }
  EXPECT_EQ(all.retriever->stats().rows_scored, flat.retriever->stats().rows_scored);
}

TEST(Ctkvr, AttendsToTheBestOfWhatListsName) {
  for (const char* rerank : {"on", "off"}) {
    RowDecoding run("ctkvr", indexed({{"decode_rerank", rerank}}));
    ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
    std::int64_t scored = 0, attended = 0;
    for (int n = 0; n < 30; ++n) {
      std::vector<std::vector<float>> expected(RowSequence::kLayers);
      const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
        std::vector<std::vector<std::int32_t>> rows;
        for (std::int32_t m = 0; m < kKvHeads; ++m) {
          const auto candidates = joined({}, ctkvr(run).candidate_rows(m)),
                     chosen = joined({}, ctkvr(run).attended_rows(m));
          ASSERT_TRUE(std::is_sorted(candidates.begin(), candidates.end()));
          ASSERT_EQ(std::adjacent_find(candidates.begin(), candidates.end()), candidates.end());
          ASSERT_GE(candidates.front(), kSink);
          ASSERT_LT(candidates.back(), kHostEnd);
          ASSERT_LE(candidates.size(), 4u * 50u);
          const auto weights = run.sequence.weights(layer, m, q, candidates);
          expect_best(chosen, weights,
                      *rerank == 'o' && rerank[1] == 'n' ? kChosen : candidates.size(),
                      "token " + std::to_string(n));
          scored += static_cast<std::int64_t>(candidates.size());
          attended += static_cast<std::int64_t>(chosen.size());
          rows.push_back(joined(joined(rows_between(0, kSink), chosen),
                                rows_between(kHostEnd, run.sequence.num_rows())));
        }
        expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
      });
      for (std::size_t layer = 0; layer < outs.size(); ++layer)
        expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
    }
    EXPECT_EQ(run.retriever->stats().rows_scored, scored);
    EXPECT_EQ(run.retriever->stats().rows_attended, attended);
    EXPECT_EQ(run.retriever->stats().device_bytes, run.device.bytes_in_use());
    EXPECT_EQ(run.retriever->stats().note, "");
  }
}

TEST(Ctkvr, AChoiceServesAsManySteps) {
  constexpr int kReuse = 4;
  RowDecoding run("ctkvr",
                  indexed({{"decode_reuse", std::to_string(kReuse)}, {"decode_tau", "-1"}})),
      all("ctkvr",
          indexed({{"decode_reuse", "4"}, {"decode_tau", "-1"}, {"decode_rerank", "off"}}));
  std::vector<std::vector<std::vector<std::int32_t>>> chosen(
      RowSequence::kLayers, std::vector<std::vector<std::int32_t>>(kKvHeads));
  for (int n = 0; n < 20; ++n) {
    std::vector<std::vector<float>> expected(RowSequence::kLayers);
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      std::vector<std::vector<std::int32_t>> rows;
      // After the first choice, layer 1 is one step ahead of its turn.
      const bool anew = n == 0 || (n + layer) % kReuse == 0;
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        auto& list = chosen[static_cast<std::size_t>(layer)][static_cast<std::size_t>(m)];
        const auto attended = joined({}, ctkvr(run).attended_rows(m));
        ASSERT_EQ(attended.size(), static_cast<std::size_t>(kChosen));
        if (anew) list = attended;
        EXPECT_EQ(attended, list) << "token " << n << " layer " << layer;
        EXPECT_EQ(ctkvr(run).candidate_rows(m).size() > attended.size(), anew)
            << "the others are not looked at";
        rows.push_back(joined(joined(rows_between(0, kSink), attended),
                              rows_between(kHostEnd, run.sequence.num_rows())));
      }
      expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
    });
    for (std::size_t layer = 0; layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
    (void)all.token();
  }
  EXPECT_EQ(ctkvr(run).index_of(0)->num_replaced(), 5)
      << "only queries that chose become centroids";
  EXPECT_EQ(ctkvr(all).index_of(0)->num_replaced(), 5);
}

TEST(Ctkvr, HeadsThatTurnedDoNotWaitForTheirTurn) {
  RowDecoding kept(
      "ctkvr", indexed({{"decode_reuse", "6"}, {"decode_tau", "2"}, {"decode_updates", "off"}})),
      anew("ctkvr", indexed({{"decode_updates", "off"}}));
  RowDecoding some("ctkvr", indexed({{"decode_reuse", "6"}}));
  for (int n = 0; n < 20; ++n) {
    EXPECT_EQ(kept.token(), anew.token()) << "token " << n;
    (void)some.token();
  }
  EXPECT_EQ(kept.retriever->stats().heads_kept, 0);
  EXPECT_GT(some.retriever->stats().heads_kept, 0) << "queries that drift";
  EXPECT_GT(some.retriever->stats().heads_corrected, 0) << "and now and then turn";
}

TEST(Ctkvr, TheAnswersQueriesReplaceTheOldestCentroids) {
  const auto lists = [](RowDecoding& run) {
    std::vector<std::vector<std::int32_t>> out;
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      for (std::int64_t c = 0; c < 24; ++c)
        out.push_back(joined({}, ctkvr(run).index_of(1)->list(m, c)));
    }
    return out;
  };
  RowDecoding kept("ctkvr", indexed({{"decode_updates", "off"}})), moving("ctkvr", indexed());
  const auto first = lists(kept);
  ASSERT_EQ(lists(moving), first);
  for (int n = 1; n <= 24; ++n) {
    (void)kept.token();
    std::vector<std::vector<std::int32_t>> pushed(kKvHeads);
    (void)moving.token([&](std::int32_t layer, const std::vector<float>& q) {
      for (std::int32_t m = 0; m < kKvHeads && layer == 1; ++m) {
        const auto candidates = joined({}, ctkvr(moving).candidate_rows(m));
        expect_best(ctkvr(moving).index_of(1)->list(m, 23),
                    moving.sequence.weights(1, m, q, candidates), 50,
                    "list of token " + std::to_string(n));
      }
    });
    EXPECT_EQ(lists(kept), first);
    const auto now = lists(moving);
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      for (std::int64_t c = 0; c < 24 - n; ++c)
        EXPECT_EQ(now[static_cast<std::size_t>(m * 24 + c)],
                  first[static_cast<std::size_t>(m * 24 + c + n)])
            << "the oldest goes first";
    }
    EXPECT_EQ(ctkvr(moving).index_of(1)->num_replaced(), n);
  }
  EXPECT_EQ(ctkvr(kept).index_of(1)->num_replaced(), 0);
}

/// Returns the share of the exact choice that lists contain.
std::vector<double> recalls(const RetrieverOptions& options) {
  RowDecoding run("ctkvr", options);
  std::vector<double> out;
  for (int n = 0; n < 10; ++n) {
    (void)run.token([&](std::int32_t layer, const std::vector<float>& q) {
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        const auto weights = run.sequence.weights(layer, m, q, rows_between(kSink, kHostEnd));
        std::vector<std::int32_t> best = rows_between(kSink, kHostEnd);
        std::stable_sort(best.begin(), best.end(), [&](std::int32_t a, std::int32_t b) {
          return weights.at(a) > weights.at(b);
        });
        const auto named = ctkvr(run).candidate_rows(m);
        out.push_back(static_cast<double>(std::count_if(best.begin(), best.begin() + kChosen,
                                                        [&](std::int32_t row) {
                                                          return std::binary_search(
                                                              named.begin(), named.end(), row);
                                                        })) /
                      kChosen);
      }
    });
  }
  return out;
}

TEST(Ctkvr, MoreProbesAndLongerListsNeverMissMore) {
  const auto last_of = [](const RetrieverOptions& fixed, std::string_view option,
                          const std::vector<std::string>& values) {
    std::vector<double> before;
    for (const std::string& value : values) {
      RetrieverOptions options = fixed;
      options[std::string(option)] = value;
      const auto now = recalls(indexed(options));
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_GE(now[i], before[i]) << option << " " << value;
      before = now;
    }
    return before;
  };
  (void)last_of({{"decode_updates", "off"}, {"decode_list", "40"}}, "decode_probes",
                {"1", "2", "4", "8", "24"});
  for (const double recall : last_of({{"decode_updates", "off"}, {"decode_probes", "2"}},
                                     "decode_list", {"10", "30", "60", "150", "278"}))
    EXPECT_EQ(recall, 1.0);
}

TEST(Ctkvr, LongAnswersMoveToTheHostAndStayInReach) {
  RowDecoding run("ctkvr", indexed({{"decode_generated", "20"}, {"decode_rerank", "off"}}));
  for (int n = 0; n < 120; ++n) {
    std::vector<std::vector<float>> expected(RowSequence::kLayers);
    const auto outs = run.token([&](std::int32_t layer, const std::vector<float>& q) {
      std::vector<std::vector<std::int32_t>> rows;
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        // The local range ends with the last row. Rows between the prompt's host rows and its
        // beginning are always scored.
        const auto named = joined({}, ctkvr(run).attended_rows(m));
        std::int32_t host_end = kHostEnd;
        while (std::binary_search(named.begin(), named.end(), host_end)) ++host_end;
        const std::int32_t local = run.sequence.num_rows() - host_end;
        EXPECT_LE(local, 40 + 20 + kPageTokens) << "token " << n;
        EXPECT_GE(local, 40) << "token " << n;
        EXPECT_LT(named.back(), host_end) << "nothing of the local range counts twice";
        rows.push_back(joined(joined(rows_between(0, kSink), named),
                              rows_between(host_end, run.sequence.num_rows())));
      }
      expected[static_cast<std::size_t>(layer)] = run.sequence.attention_to(layer, q, rows);
    });
    for (std::size_t layer = 0; layer < outs.size(); ++layer)
      expect_near(outs[layer], expected[layer], 1e-4, "token " + std::to_string(n));
  }
}

/// If the prompt fits the budget and the answer does not, no index is made and all host rows are
/// scored.
TEST(Ctkvr, APromptWithinTheBudgetNeedsNoIndex) {
  const RetrieverOptions options = {{"decode_budget", "340"},
                                    {"decode_sink", "10"},
                                    {"decode_window", "40"},
                                    {"decode_generated", "0"}};
  RetrieverOptions anew = options;
  anew["decode_reuse"] = "1";
  RowDecoding run("ctkvr", anew), flat("flat", options);
  for (int n = 0; n < 60; ++n) expect_same_rows(run.token(), flat.token(), n);
  EXPECT_GT(run.retriever->stats().sparse_steps, 0);
  EXPECT_EQ(ctkvr(run).index_of(1), nullptr);
}

TEST(Ctkvr, WithTooFewQueriesPagesAreRetrieved) {
  RowDecoding run("ctkvr", small({{"decode_centroids", "60"}, {"decode_least_centroids", "50"}}), 0,
                  /*first_seen=*/kPrompt - 31);
  ASSERT_TRUE(run.prepared.ok()) << run.prepared.to_string();
  for (int n = 0; n < 5; ++n) (void)run.token();
  const RetrieveStats s = run.retriever->stats();
  EXPECT_NE(s.note.find("31 queries of the prompt were at hand and 50 are needed"),
            std::string::npos)
      << s.note;
  EXPECT_GT(s.selections, 0);
  EXPECT_EQ(s.rows_scored, 0);
  RowDecoding enough("ctkvr", small({{"decode_centroids", "60"}, {"decode_least_centroids", "31"}}),
                     0, kPrompt - 31);
  (void)enough.token();
  EXPECT_EQ(enough.retriever->stats().note, "");
  EXPECT_EQ(ctkvr(enough).index_of(0)->num_centroids(), 31);
}

/// With too few queries pages are retrieved, which needs copies. The device has room for their
/// slots but for no layer.
TEST(Ctkvr, DelayedAndFailingCopiesOfPagesChangeNothingElse) {
  const RetrieverOptions few = small(
      {{"decode_centroids", "60"}, {"decode_least_centroids", "50"}});
  const std::int64_t room = RowSequence::kLayers * std::int64_t{220} * 2 * RowSequence::kKvHeads *
                            RowSequence::kDim * 4;
  std::atomic<int> number = 0;
  TransferStreams slow(
      [&number] {
        std::this_thread::sleep_for(std::chrono::microseconds(++number * 131 % 400));
        return Status();
      },
      2);
  RowDecoding at_once("ctkvr", few, room, kPrompt - 31),
      delayed("ctkvr", few, room, kPrompt - 31, &slow);
  ASSERT_TRUE(at_once.prepared.ok()) << at_once.prepared.to_string();
  for (int n = 0; n < 30; ++n) EXPECT_EQ(delayed.token(), at_once.token()) << "token " << n;
  EXPECT_GT(delayed.retriever->stats().copies, 0);
  EXPECT_EQ(delayed.retriever->stats().bytes_copied, at_once.retriever->stats().bytes_copied);

  TransferStreams broken([] { return Status::io("the bus is down"); });
  RowDecoding failing("ctkvr", few, room, kPrompt - 31, &broken);
  Status failed;
  std::vector<float> out;
  for (int n = 0; n < 30 && failed.ok(); ++n) {
    failed = failing.retriever->begin_step(7, failing.sequence.num_rows());
    failing.sequence.add_row(failing.sequence.num_rows());
    for (std::int32_t layer = 0; layer < RowSequence::kLayers && failed.ok(); ++layer) {
      const auto q = failing.sequence.query(layer, failing.sequence.num_rows() - 1);
      failed = failing.retriever->attend(failing.sequence.step(layer, q, out));
    }
  }
  EXPECT_EQ(failed.code(), Code::kIo);
  failing.retriever->synchronize();
}

TEST(Ctkvr, AFullDeviceFailsThisRequestOnly) {
  constexpr std::int64_t kLayer = RowSequence::kHeads * 32 * RowSequence::kDim * 2;
  RowDecoding never("ctkvr", indexed(), /*device_bytes=*/kLayer + 100);
  EXPECT_EQ(never.prepared.code(), Code::kInvalidArgument) << "no retry can help";
  EXPECT_EQ(never.prepared.field(), "cache.options.decode_centroids");
  RowDecoding run("ctkvr", indexed(), 2 * kLayer);
  ASSERT_TRUE(run.prepared.ok());
  EXPECT_EQ(run.device.bytes_in_use(), 2 * kLayer);
  // A second request finds the room of one layer taken.
  run.retriever = std::move(*retrievers().make("ctkvr", PlugOptions(indexed())));
  ASSERT_EQ(run.device.bytes_in_use(), 0);
  const auto others = run.device.allocate(kLayer);
  ASSERT_TRUE(others.ok());
  EXPECT_EQ(run.prepare().code(), Code::kResourceExhausted);
  run.retriever = std::move(*retrievers().make("dense"));
  EXPECT_EQ(run.device.bytes_in_use(), kLayer) << "the other's alone";
}

TEST(Ctkvr, AnIndexFarLargerThanTheCacheIsRefused) {
  // Heads of 8 channels take 32 bytes per row. 700 centroids need a list of 88 bytes each.
  constexpr std::int32_t kRows = 700, kNarrow = 8;
  PagePool pool(PageFormat{1, kNarrow, DType::kF16}, 0);
  WorkingCache cache(pool, 1);
  const std::vector<std::int32_t> positions = rows_between(0, kRows);
  const std::vector<float> zeros(kRows * 2 * kNarrow, 0.0f);
  RopeConfig config;
  config.head_dim = config.rotary_dim = kNarrow;
  const RopeTable rope = std::move(*RopeTable::build(config, 1024));
  ASSERT_TRUE(cache.add_rows(0, positions).ok());
  ASSERT_TRUE(cache
                  .place(0, rope,
                         {zeros.data(), kRows, DType::kF32, kRows * 2 * kNarrow * 4,
                          kRows * kNarrow * 4, kNarrow * 4},
                         0)
                  .ok());
  for (const std::int64_t centroids : {400, 700}) {
    PromptQueries queries(rope, {1, 1, kNarrow}, {centroids, WantedQueries::Rows::kLast}, kRows);
    const std::vector<float> lse(kRows, NAN);
    LayerPass pass{};
    pass.compute = &host_compute();
    pass.positions = positions;
    pass.qkv.q = zeros.data();
    pass.qkv.rows = kRows;
    pass.qkv.ld = kNarrow;
    pass.lse = lse.data();
    ASSERT_TRUE(queries.after_attention(pass).ok());
    DevicePool device(0);
    const PlugOptions options(small({{"decode_centroids", std::to_string(centroids)}}));
    SequenceContext context;
    context.compute = &host_compute();
    AssembledPrompt assembled;
    context.cache = &cache;
    assembled.queries = &queries;
    context.device = &device;
    assembled.num_tokens = kRows;
    context.num_layers = context.num_heads = context.num_kv_heads = 1;
    context.head_dim = kNarrow;
    const auto retriever = std::move(*retrievers().make("ctkvr", options));
    const Status s = prepare_whole(*retriever, context, assembled);
    EXPECT_EQ(s.ok(), centroids == 400) << s.to_string();
    if (centroids == 400) continue;
    EXPECT_EQ(s.field(), "cache.options.decode_centroids");
    EXPECT_NE(s.message().find("ask for fewer"), std::string::npos) << s.message();
  }
}

/// Other requests get their turns between the layers.
TEST(Ctkvr, IndexesALayerAtATime) {
  RowDecoding whole("ctkvr", indexed()), parts("dense", {});
  parts.retriever = std::move(*retrievers().make("ctkvr", PlugOptions(indexed())));
  ASSERT_TRUE(parts.prepare(0, /*whole=*/false).ok());
  parts.queries.reset();
  auto& pieces = *capability<PreparesInPieces>(*parts.retriever);
  for (std::int32_t layer = 0; layer < RowSequence::kLayers; ++layer) {
    ASSERT_FALSE(pieces.prepared()) << layer;
    EXPECT_EQ(ctkvr(parts).index_of(layer), nullptr) << layer;
    ASSERT_TRUE(pieces.prepare_more().ok()) << layer;
    EXPECT_NE(ctkvr(parts).index_of(layer), nullptr) << layer;
  }
  ASSERT_TRUE(pieces.prepared());
  for (int n = 0; n < 5; ++n) EXPECT_EQ(parts.token(), whole.token()) << "token " << n;
  EXPECT_EQ(parts.retriever->stats().device_bytes, whole.retriever->stats().device_bytes);
}

TEST(Ctkvr, SaysWhichQueriesItWants) {
  const auto wanted = [&](const RetrieverOptions& options, std::int64_t prompt) {
    const auto retriever = std::move(*retrievers().make("ctkvr", PlugOptions(options)));
    return capability<PromptWatcher>(*retriever)->queries_wanted(prompt);
  };
  EXPECT_EQ(wanted({}, 1600).count, 0) << "within the budget";
  EXPECT_EQ(wanted({}, 3200).count, 256) << "where lists are few, each counts";
  EXPECT_EQ(wanted({}, 8000).count, 500);
  EXPECT_EQ(wanted({{"decode_budget", "600"}}, 200).count, 0);
  EXPECT_EQ(wanted({}, 100000).count, 512);
  EXPECT_EQ(wanted({{"decode_centroids", "7"}}, 3200).count, 7);
  using Rows = WantedQueries::Rows;
  EXPECT_EQ(wanted({}, 3200).rows, Rows::kLast);
  EXPECT_EQ(wanted({{"decode_centroid_rows", "equi"}}, 3200).rows, Rows::kSpread);
  EXPECT_EQ(wanted({{"decode_centroid_rows", "random"}}, 3200).rows, Rows::kRandom);
  EXPECT_EQ(wanted({{"decode_centroid_rows", "init"}}, 3200).rows, Rows::kFirst);
}

TEST(Ctkvr, ListsAreLongerWhereFewRowsAreChosen) {
  // The host rows are [10, 288), so a list can leave rows out.
  for (const auto& [chosen, list] : {std::pair{8, 40}, std::pair{30, 150}, std::pair{60, 278}}) {
    RowDecoding run("ctkvr", small({{"decode_budget", std::to_string(kSink + 40 + chosen)},
                                    {"decode_centroids", "24"},
                                    {"decode_least_centroids", "1"}}));
    EXPECT_EQ(ctkvr(run).index_of(0)->list(0, 23).size(), static_cast<std::size_t>(list)) << chosen;
  }
  RowDecoding published("ctkvr", indexed({{"decode_list", "75"}}));
  EXPECT_EQ(ctkvr(published).index_of(0)->list(0, 23).size(), 75u);
}

TEST(Ctkvr, OptionsThatDoNotFitAreNamed) {
  for (const char* name : {"ctkvr", "flat"}) {
    EXPECT_TRUE(retrievers().make(name).ok());
    const Status s = retrievers()
                         .make(name, PlugOptions(RetrieverOptions{{"decode_budget", "576"},
                                                                  {"decode_sink", "64"},
                                                                  {"decode_window", "512"}}))
                         .status();
    EXPECT_EQ(s.field(), "cache.options.decode_budget");
    EXPECT_NE(s.message().find("64 of sinks and 512 of window"), std::string::npos) << s.message();
  }
}

}  // namespace
}  // namespace quire::testing
