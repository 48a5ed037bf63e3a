// SpeContext over a growing cache: which rows it attends to, what it copies, and that timing
// changes nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention_rows.h"
#include "tests/support/harness/specontext_harness.h"

namespace quire::testing {
namespace {

using Options = HeadDecoding::Options;
constexpr std::int32_t kLayers = HeadDecoding::kLayers, kHeads = HeadDecoding::kHeads,
                       kKvHeads = HeadDecoding::kKvHeads, kDim = HeadDecoding::kDim,
                       kPrompt = HeadDecoding::kPrompt;
constexpr std::size_t kQuery = HeadDecoding::kQuery;

/// The model and the head that all tests share.
class SpeContextTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { shared_ = std::make_unique<HeadedModel>(); }
  static void TearDownTestSuite() { shared_.reset(); }
  static std::int32_t token(std::int32_t position) { return HeadDecoding::token(position); }
  static Options budget(int tokens, const char* head = "auto") {
    return HeadDecoding::budget(tokens, head);
  }

  struct Decoding : HeadDecoding {
    template <class... More>
    explicit Decoding(std::string_view name, Options given, More... more)
        : HeadDecoding(*shared_, name, std::move(given), more...) {}
  };

  static std::unique_ptr<HeadedModel> shared_;
};
std::unique_ptr<HeadedModel> SpeContextTest::shared_;

TEST_F(SpeContextTest, ABudgetOverTheContextIsDense) {
  Decoding run("specontext", budget(300)), dense("dense", {});
  for (int n = 0; n < 40; ++n) EXPECT_EQ(run.next(), dense.next()) << "token " << n;
  EXPECT_EQ(run.retriever->stats().sparse_steps, 0);
  EXPECT_EQ(run.retriever->stats().bytes_copied, 0);
}

TEST_F(SpeContextTest, HeadsWhoseQueriesTurnedChooseAnew) {
  const auto with_tau = [](const char* tau) {
    Options options = budget(48, "embed");
    options["decode_reuse"] = "6";
    options["decode_tau"] = tau;
    return options;
  };
  Decoding never("specontext", with_tau("2")), some("specontext", with_tau("0")),
      anew("specontext", budget(48, "embed"));
  std::vector<std::vector<std::int32_t>> chosen(kKvHeads);
  std::int64_t changed = 0;
  for (int n = 0; n < 30; ++n) {
    const auto outs = anew.next();
    EXPECT_EQ(never.next(), outs) << "token " << n;
    (void)some.next();
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      const auto of = [&](Decoding& run) {
        auto rows = run.plug().attended_rows(0, m);
        EXPECT_EQ(rows.back(), run.last_position());
        rows.resize(42);  // keeps only rows before the window
        return rows;
      };
      const auto now = of(some);
      auto& kept = chosen[static_cast<std::size_t>(m)];
      if (n % 6 != 0 && now == kept) continue;
      EXPECT_EQ(now, of(anew)) << "token " << n << " head " << m
                               << " has neither its old choice nor a new one";
      changed += n % 6 != 0 ? 1 : 0;
      kept = now;
    }
  }
  const RetrieveStats stats = some.retriever->stats();
  EXPECT_EQ(stats.heads_corrected + stats.heads_kept, 25 * kKvHeads);
  EXPECT_GE(stats.heads_corrected, changed);
  EXPECT_GT(changed, 0);
  EXPECT_GT(stats.heads_kept, 0);
  EXPECT_EQ(never.retriever->stats().heads_kept, 0);
}

TEST_F(SpeContextTest, AttendsToExactlyWhatItChose) {
  for (const auto& [input, reuse] : {std::pair{"embed", 1}, {"feature", 1}, {"feature", 4}}) {
    Options options = budget(48, input);
    options["decode_reuse"] = std::to_string(reuse);
    options["decode_tau"] = "-1";  // no head chooses before its turn
    Decoding run("specontext", options), anew("specontext", budget(48, input));
    std::vector<std::int32_t> chosen;
    for (int n = 0; n < 30; ++n) {
      const auto outs = run.next();
      (void)anew.next();
      auto before_window = run.plug().attended_rows(0, 1);
      before_window.resize(42);
      if (n % reuse == 0) chosen = anew.plug().attended_rows(0, 1);
      chosen.resize(42);
      EXPECT_EQ(before_window, chosen) << "the choice of step " << n / reuse * reuse;
      EXPECT_EQ(run.retriever->stats().selections, n / reuse + 1);
      ASSERT_TRUE(run.status.ok()) << run.status.to_string();
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        std::vector<std::vector<std::int32_t>> rows;
        std::vector<RowList> lists;
        for (std::int32_t m = 0; m < kKvHeads; ++m) {
          rows.push_back(run.plug().attended_rows(layer, m));
          ASSERT_EQ(rows.back().size(), 48u);
          EXPECT_EQ(rows.back(), run.plug().attended_rows(0, m))
              << "every layer attends to the same";
          EXPECT_EQ(rows.back()[1], 1) << "the sinks";
          EXPECT_EQ(rows.back()[42], run.last_position() - 5)
              << "the window, with the token itself at its end";
        }
        for (const auto& list : rows)
          lists.push_back({list.data(), static_cast<std::int64_t>(list.size())});
        std::vector<float> want(kQuery), in_place(kQuery);
        const auto q = Decoding::query(layer, run.last_position());
        const RetrieveStep step = run.step(layer, q, run.last_position(), want);
        ASSERT_TRUE(
            attention_rows_reference({attention_args(step, run.cache().view(layer)), lists.data()})
                .ok());
        const auto& got = outs[static_cast<std::size_t>(layer)];
        for (std::size_t i = 0; i < kQuery; ++i)
          ASSERT_NEAR(got[i], want[i], 2e-3)
              << input << " token " << n << " layer " << layer << " at " << i;
        RetrieveStep there = step;
        there.out = in_place.data();
        ASSERT_TRUE(
            attention_rows({attention_args(there, run.cache().view(layer)), lists.data()}).ok());
        EXPECT_EQ(got, in_place) << "where rows lie changes no bit";
      }
    }
  }
}

TEST_F(SpeContextTest, ChoosesByTheHeadOverTheTokensBefore) {
  Decoding run("specontext", budget(48, "embed"));
  for (int n = 0; n < 3; ++n) (void)run.next();
  HeadTrack track(*shared_->head, HeadInput::kEmbedding);
  std::vector<std::int32_t> ids, positions;
  for (std::int32_t p = 0; p <= run.last_position(); ++p) {
    ids.push_back(token(p));
    positions.push_back(p);
  }
  ASSERT_TRUE(track.add_embedded(ids, positions).ok());
  DevicePool pool(0);
  HeadKeys all(pool, *shared_->head);
  ASSERT_TRUE(all.append(track.keys().data(), positions).ok());
  std::vector<float> q(kQuery), scores;
  ASSERT_TRUE(shared_->head->project(std::span(ids).last(1), nullptr, q.data(), nullptr).ok());
  ASSERT_TRUE(rope_rotate(shared_->head->rope(), {.x = q.data(),
                                                  .out = q.data(),
                                                  .positions = &positions.back(),
                                                  .rows = 1,
                                                  .num_heads = kHeads,
                                                  .ldx = kQuery,
                                                  .ldo = kQuery})
                  .ok());
  ASSERT_TRUE(head_scores(TransposedHeadScoresArgs{.query = q.data(),
                                                   .position = positions.back(),
                                                   .num_heads = kHeads,
                                                   .keys = all.view(),
                                                   .target_kv_heads = kKvHeads},
                          scores)
                  .ok());
  for (std::size_t m = 0; m < kKvHeads; ++m) {
    EXPECT_EQ(run.plug().attended_rows(0, static_cast<std::int32_t>(m)),
              select_tokens(std::span(scores).subspan(m * ids.size(), ids.size()), {48, 2, 6}));
  }
}

TEST_F(SpeContextTest, MovesWhatWasNotThereAndNothingElse) {
  Decoding run("specontext", budget(48));
  std::vector<std::vector<std::int32_t>> before(kKvHeads);
  std::int64_t bytes = 0;
  const std::int64_t row_bytes = 2 * kDim * 2;
  for (int n = 0; n < 40; ++n) {
    (void)run.next();
    std::int64_t missing = 0;
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      const auto now = run.plug().attended_rows(1, m);
      std::vector<std::int32_t> fresh;
      std::ranges::set_difference(now, before[static_cast<std::size_t>(m)],
                                  std::back_inserter(fresh));
      ASSERT_EQ(fresh.back(), run.last_position()) << "the token itself is appended, not brought";
      missing += static_cast<std::int64_t>(fresh.size()) - 1;
      auto held = run.plug().slot_rows(1, m);
      std::ranges::sort(held);
      EXPECT_EQ(held, now) << "slots hold what is attended to";
      before[static_cast<std::size_t>(m)] = now;
    }
    const RetrieveStats& s = run.retriever->stats();
    EXPECT_EQ(s.bytes_copied - bytes, missing * row_bytes * kLayers) << "token " << n;
    bytes = s.bytes_copied;
    EXPECT_EQ(s.bytes_appended, (n + 1) * kLayers * kKvHeads * row_bytes);
  }
  const RetrieveStats s = run.retriever->stats();
  EXPECT_EQ(s.selections, 40);
  EXPECT_EQ(s.sparse_steps, 40 * kLayers);
  EXPECT_EQ(s.rows_wanted, 40 * kLayers * kKvHeads * 47);
  EXPECT_LT(s.rows_copied, s.rows_wanted);
}

TEST_F(SpeContextTest, AStepThatEndedEarlyCostsTheNextOneNoRow) {
  TransferStreams lane;
  Options in_place = budget(40, "embed");
  in_place["decode_resident"] = "auto";
  Decoding slots("specontext", budget(40, "embed"), &lane), place("specontext", in_place);
  for (int n = 0; n < 20; ++n) {
    const std::int32_t layers = n % 4 == 2 ? 0 : n % 4 == 3 ? 1 : kLayers;
    EXPECT_EQ(slots.next(layers), place.next(layers)) << "token " << n;
    ASSERT_TRUE(slots.status.ok()) << slots.status.to_string();
  }
  EXPECT_EQ(slots.retriever->stats().layers_offloaded, kLayers);
  EXPECT_EQ(place.retriever->stats().rows_copied, 0);
}

TEST_F(SpeContextTest, WithoutElasticLoadingEverythingMovesAndNothingElseChanges) {
  Options off = budget(48);
  off["decode_elastic"] = "off";
  Decoding run("specontext", off), elastic("specontext", budget(48));
  for (int n = 0; n < 12; ++n) {
    const auto want = elastic.next();
    EXPECT_EQ(run.next(), want) << "token " << n;
  }
  const RetrieveStats all = run.retriever->stats(), some = elastic.retriever->stats();
  EXPECT_EQ(all.rows_copied, all.rows_wanted);
  EXPECT_EQ(all.rows_wanted, some.rows_wanted);
  EXPECT_LT(some.rows_copied, all.rows_copied);
}

TEST_F(SpeContextTest, ALayerThatLacksRowsChoosesAmongItsOwn) {
  Decoding run("specontext", budget(48, "embed"), nullptr, 0, /*lacking_layer=*/1),
      whole("specontext", budget(48, "embed"));
  for (int n = 0; n < 20; ++n) {
    (void)run.next();
    (void)whole.next();
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      EXPECT_EQ(run.plug().attended_rows(0, m), whole.plug().attended_rows(0, m));
      const auto rows = run.plug().attended_rows(1, m);
      EXPECT_EQ(rows.size(), 48u) << "the whole budget";
      // Rows that both have and the whole choice took are taken here too, because fewer rows
      // compete.
      std::vector<std::int32_t> positions;
      for (const std::int32_t row : rows)
        positions.push_back(run.cache().positions(1)[static_cast<std::size_t>(row)]);
      for (const std::int32_t p : whole.plug().attended_rows(0, m)) {
        if (p >= kPrompt || p % 5 != 3) {
          EXPECT_TRUE(std::ranges::binary_search(positions, p))
              << "token " << n << " position " << p;
        }
      }
    }
  }
}

TEST_F(SpeContextTest, DelaysChangeNothing) {
  std::mt19937 random(5);
  TransferStreams slow([&random] {
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
    return Status();
  });
  TransferStreams fast;
  Decoding at_once("specontext", budget(40)), beside("specontext", budget(40), &fast),
      delayed("specontext", budget(40), &slow);
  for (int n = 0; n < 60; ++n) {
    const auto want = at_once.next();
    EXPECT_EQ(beside.next(), want) << "token " << n;
    EXPECT_EQ(delayed.next(), want) << "token " << n;
  }
  EXPECT_EQ(at_once.retriever->stats().bytes_copied, delayed.retriever->stats().bytes_copied);
  EXPECT_EQ(delayed.retriever->stats().copies, beside.retriever->stats().copies);
  EXPECT_GT(delayed.retriever->stats().copies, 0);
}

TEST_F(SpeContextTest, ACopyThatFailsEndsThisRequestOnly) {
  int number = 0;
  TransferStreams lane(
      [&number] { return ++number == 5 ? Status::io("the bus is down") : Status(); });
  Decoding failing("specontext", budget(40), &lane);
  while (failing.status.ok() && failing.last_position() < kPrompt + 10) (void)failing.next();
  EXPECT_EQ(failing.status.code(), Code::kIo);
  EXPECT_NE(failing.status.message().find("the bus is down"), std::string::npos);
  Decoding other("specontext", budget(40), &lane), plain("specontext", budget(40));
  for (int n = 0; n < 5; ++n) EXPECT_EQ(other.next(), plain.next());
}

TEST_F(SpeContextTest, HoldsWhatItSaysAndNoMore) {
  Decoding run("specontext", budget(40));
  (void)run.next();
  const std::int64_t slots = kLayers * 48 * kKvHeads * 2 * kDim * 2;  // 40 rows in pages of 16
  EXPECT_EQ(run.device.bytes_in_use(),
            slots + HeadKeys::bytes_for(shared_->head->config(), kPrompt + 1));
  EXPECT_EQ(run.retriever->stats().device_bytes, run.device.bytes_in_use());
  run.retriever->synchronize();
  run.retriever = std::move(*retrievers().make("dense"));
  EXPECT_EQ(run.device.bytes_in_use(), 0);
}

TEST_F(SpeContextTest, LayersLeaveOneByOneAndNoBitChanges) {
  Options kept = budget(40);
  kept["decode_resident"] = "auto";
  // A row of a layer takes 128 bytes, and its key of the head 64, so three layers fit for 170 rows.
  const std::int64_t bytes = 170 * (3 * 128 + 64) + 16 * (3 * 128 + 64);
  TransferStreams lane;
  Decoding brought("specontext", budget(40)), adaptive("specontext", kept, &lane, bytes),
      roomy("specontext", kept);
  std::int64_t before = 0;
  for (int n = 0; n < 200; ++n) {
    const auto want = brought.next();
    ASSERT_EQ(adaptive.next(), want) << "token " << n;
    ASSERT_EQ(roomy.next(), want) << "token " << n;
    const std::int64_t away = adaptive.retriever->stats().layers_offloaded;
    EXPECT_LE(adaptive.device.bytes_in_use(), bytes);
    EXPECT_GE(away, before);
    EXPECT_LE(away - before, 1);
    before = away;
  }
  EXPECT_GE(before, 2);
  EXPECT_EQ(roomy.retriever->stats().bytes_copied, 0);
  EXPECT_LT(adaptive.retriever->stats().bytes_copied, brought.retriever->stats().bytes_copied);
}

TEST_F(SpeContextTest, ADeviceThatCanNeverHoldTheBudgetIsTheCallersError) {
  Decoding run("specontext", budget(40), nullptr, 30000);
  (void)run.next();
  EXPECT_EQ(run.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(run.status.field(), "cache.options.decode_budget");
  EXPECT_NE(run.status.message().find("30000"), std::string::npos) << run.status.message();
}

TEST_F(SpeContextTest, HotRowsAreThereWhenTheFirstStepBegins) {
  constexpr std::int32_t kBudget = 40, kLacking = 1;
  // Each layer ranks separately. Rows on which two layers agree come before those that one has
  // first.
  RetainedRows retained;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    retained.hot.emplace_back();
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      auto& rows = retained.hot.back().emplace_back();
      for (std::int32_t i = 0; i < 60; ++i) rows.push_back((layer * 7 + m * 31 + i) % 110);
    }
  }
  TransferStreams lane;
  Decoding cold("specontext", budget(kBudget), &lane, 0, kLacking),
      warm("specontext", budget(kBudget), &lane, 0, kLacking, &retained);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    const auto rows = static_cast<std::int32_t>(warm.cache().num_rows(layer));
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      std::vector<std::pair<int, std::int32_t>> ranked;  // (negative points, row)
      for (std::int32_t row = 2; row < rows - 6; ++row) {
        int points = 0;
        for (std::int32_t l = 0; l < kLayers; ++l) {
          if ((l == kLacking) != (layer == kLacking)) continue;
          const auto& hot = retained.hot[static_cast<std::size_t>(l)][static_cast<std::size_t>(m)];
          points += static_cast<int>(hot.end() - std::find(hot.begin(), hot.end(), row));
        }
        ranked.emplace_back(-points, row);
      }
      std::sort(ranked.begin(), ranked.end());
      std::vector<std::int32_t> expected = {0, 1};
      for (std::int32_t i = 0; i < kBudget - 8; ++i)
        expected.push_back(ranked[static_cast<std::size_t>(i)].second);
      for (std::int32_t row = rows - 6; row < rows; ++row) expected.push_back(row);
      auto held = warm.plug().slot_rows(layer, m);
      std::sort(expected.begin(), expected.end());
      std::sort(held.begin(), held.end());
      EXPECT_EQ(held, expected) << "layer " << layer << " head " << m;
      EXPECT_TRUE(cold.plug().slot_rows(layer, m).empty());
    }
  }
  for (int n = 0; n < 40; ++n) {
    EXPECT_EQ(warm.next(), cold.next()) << "token " << n;
    ASSERT_TRUE(warm.status.ok()) << warm.status.to_string();
  }
}

TEST_F(SpeContextTest, AGoodRankingLeavesTheFirstStepLessToBring) {
  Decoding cold("specontext", budget(40));
  (void)cold.next();
  RetainedRows retained;
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    retained.hot.emplace_back();
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      auto rows = cold.plug().attended_rows(layer, m);
      rows.pop_back();  // drops the row of the step
      retained.hot.back().push_back(std::move(rows));
    }
  }
  Decoding warm("specontext", budget(40), nullptr, 0, -1, &retained);
  const std::int64_t before = warm.retriever->stats().rows_copied;
  (void)warm.next();
  EXPECT_EQ(before, kLayers * kKvHeads * 40);
  EXPECT_EQ(cold.retriever->stats().rows_copied, kLayers * kKvHeads * 39);
  EXPECT_EQ(warm.retriever->stats().rows_copied - before, 0) << "what is wanted was all ranked";
}

TEST_F(SpeContextTest, OptionsThatDoNotFitAreNamed) {
  const auto field = [](Options given) {
    return std::string(
        retrievers().make("specontext", PlugOptions(std::move(given))).status().field());
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({{"decode_budget", "68"}}), "cache.options.decode_budget")
      << "4 sinks and 64 of window take all of it";
  EXPECT_EQ(field({{"decode_budget", "69"}}), "");
  EXPECT_EQ(field({{"decode_budget", "16"}, {"decode_sink", "0"}, {"decode_window", "0"}}), "");
}

}  // namespace
}  // namespace quire::testing
