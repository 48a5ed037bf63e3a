// SpeContext with an answer a hundred times as long as its prompt chooses, attends to and copies
// what plain loops compute.
#include <cstring>
#include <iterator>

#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/rows/rope.h"
#include "tests/support/harness/specontext_harness.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kLayers = HeadDecoding::kLayers, kHeads = HeadDecoding::kHeads,
                       kKvHeads = HeadDecoding::kKvHeads, kDim = HeadDecoding::kDim;
constexpr std::size_t kBudget = 48, kSinks = 2, kWindow = 6;

/// Returns the rows that each KV head must attend to in the step of `last`. The head's weights of
/// all tokens are computed again from token ids, and the best are taken.
std::vector<std::vector<std::int32_t>> chosen_anew(const HeadedModel& model, std::int32_t last) {
  const RetrievalHead& head = *model.head;
  std::vector<std::int32_t> ids, positions;
  for (std::int32_t p = 0; p <= last; ++p) {
    ids.push_back(HeadDecoding::token(p));
    positions.push_back(p);
  }
  HeadTrack track(head, HeadInput::kEmbedding);
  EXPECT_TRUE(track.add_embedded(ids, positions).ok());
  DevicePool pool(0);
  HeadKeys keys(pool, head);
  EXPECT_TRUE(keys.append(track.keys().data(), positions).ok());
  std::vector<float> q(HeadDecoding::kQuery), scores;
  EXPECT_TRUE(head.project(std::span(ids).last(1), nullptr, q.data(), nullptr).ok());
  EXPECT_TRUE(rope_rotate(head.rope(), {.x = q.data(),
                                        .out = q.data(),
                                        .positions = &positions.back(),
                                        .rows = 1,
                                        .num_heads = kHeads,
                                        .ldx = HeadDecoding::kQuery,
                                        .ldo = HeadDecoding::kQuery})
                  .ok());
  EXPECT_TRUE(head_scores(TransposedHeadScoresArgs{.query = q.data(),
                                                   .position = last,
                                                   .num_heads = kHeads,
                                                   .keys = keys.view(),
                                                   .target_kv_heads = kKvHeads},
                          scores)
                  .ok());
  std::vector<std::vector<std::int32_t>> out;
  for (std::size_t m = 0; m < kKvHeads; ++m)
    out.push_back(select_tokens(std::span(scores).subspan(m * ids.size(), ids.size()),
                                {kBudget, kSinks, kWindow}));
  return out;
}

TEST(LongGeneration, ChosenRowsStayExactOverSixteenThousandTokens) {
  constexpr int kTokens = 16384, kLookEvery = 1024;
  constexpr std::int64_t kRowBytes = 2 * kDim * 2;
  const HeadedModel model(17408);
  HeadDecoding run(model, "specontext", HeadDecoding::budget(kBudget, "embed"));
  std::vector<std::vector<std::int32_t>> before(kKvHeads);
  std::int64_t bytes = 0, moved = 0;
  for (int n = 0; n < kTokens; ++n) {
    const auto outs = run.next();
    ASSERT_TRUE(run.status.ok()) << run.status.to_string();
    std::int64_t missing = 0;
    for (std::int32_t m = 0; m < kKvHeads; ++m) {
      auto& last = before[static_cast<std::size_t>(m)];
      const auto now = run.plug().attended_rows(0, m);
      ASSERT_EQ(now.size(), kBudget);
      std::vector<std::int32_t> fresh;
      std::ranges::set_difference(now, last, std::back_inserter(fresh));
      ASSERT_EQ(fresh.back(), run.last_position()) << "the token itself is appended, not brought";
      missing += static_cast<std::int64_t>(fresh.size()) - 1;
      last = now;
    }
    moved += missing * kLayers;
    const RetrieveStats& s = run.retriever->stats();
    ASSERT_EQ(s.bytes_copied - bytes, missing * kRowBytes * kLayers)
        << "token " << n << ": the difference to the step before, and nothing else";
    bytes = s.bytes_copied;
    // The device holds slots for the budget, and one key of the head for each token.
    ASSERT_EQ(run.device.bytes_in_use(),
              std::int64_t{kLayers} * static_cast<std::int64_t>(kBudget) * kKvHeads * kRowBytes +
                  HeadKeys::bytes_for(model.head->config(), run.last_position() + 1))
        << "token " << n;
    if (n % kLookEvery != kLookEvery - 1) continue;
    EXPECT_EQ(before, chosen_anew(model, run.last_position())) << "token " << n;
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      std::vector<RowList> lists;
      for (std::int32_t m = 0; m < kKvHeads; ++m) {
        const auto& rows = before[static_cast<std::size_t>(m)];
        EXPECT_EQ(run.plug().attended_rows(layer, m), rows) << "every layer attends to the same";
        auto held = run.plug().slot_rows(layer, m);
        std::ranges::sort(held);
        EXPECT_EQ(held, rows) << "slots hold what is attended to";
        lists.push_back({rows.data(), static_cast<std::int64_t>(rows.size())});
      }
      std::vector<float> want(HeadDecoding::kQuery), in_place(HeadDecoding::kQuery);
      const auto q = HeadDecoding::query(layer, run.last_position());
      RetrieveStep step = run.step(layer, q, run.last_position(), want);
      ASSERT_TRUE(
          attention_rows_reference({attention_args(step, run.cache().view(layer)), lists.data()})
              .ok());
      const auto& got = outs[static_cast<std::size_t>(layer)];
      for (std::size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 2e-3) << "token " << n << " layer " << layer << " at " << i;
      step.out = in_place.data();
      ASSERT_TRUE(
          attention_rows({attention_args(step, run.cache().view(layer)), lists.data()}).ok());
      EXPECT_EQ(got, in_place) << "slots hold the cache's own rows, bit for bit";
    }
  }
  const RetrieveStats s = run.retriever->stats();
  EXPECT_EQ(s.selections, kTokens);
  EXPECT_EQ(s.sparse_steps, std::int64_t{kTokens} * kLayers);
  EXPECT_EQ(s.rows_copied, moved);
  EXPECT_EQ(s.rows_wanted,
            std::int64_t{kTokens} * kLayers * kKvHeads * static_cast<std::int64_t>(kBudget - 1));
  EXPECT_LT(s.rows_copied, s.rows_wanted);
  EXPECT_EQ(s.bytes_appended, std::int64_t{kTokens} * kLayers * kKvHeads * kRowBytes);
}

}  // namespace
}  // namespace quire::testing
