#include "engine/retrieve/choice_buffers.h"

#include "engine/compute/compute.h"

namespace quire {
namespace {

constexpr std::int64_t kRowsRoom = 256;

}  // namespace

ChoosingNeed ChoiceBuffers::need(const RetrieveShape& shape, std::int64_t rows_per_candidate,
                                 std::int64_t more_candidates, std::int64_t most_listed) {
  ChoosingNeed need;
  for (const std::int64_t width : {shape.num_heads, shape.num_kv_heads})
    need += need_with_room(
        rows_per_candidate > 0 ? (width + rows_per_candidate - 1) / rows_per_candidate : 0,
        width * more_candidates, sizeof(float));
  need += need_with_room(0, shape.num_kv_heads * (most_listed + kRowsRoom), sizeof(std::int32_t));
  need += need_with_room(0, shape.num_kv_heads, sizeof(RowList));
  return need;
}

Result<float*> ChoiceBuffers::scores(std::int64_t num_heads, std::int64_t n) {
  QUIRE_RETURN_IF_ERROR(scores_.reserve(memory_, num_heads * n));
  return scores_.buffer.data();
}

Result<float*> ChoiceBuffers::votes(std::int64_t num_kv_heads, std::int64_t n) {
  QUIRE_RETURN_IF_ERROR(votes_.reserve(memory_, num_kv_heads * n));
  return votes_.buffer.data();
}

Status ChoiceBuffers::choose(Compute& compute, std::int32_t num_kv_heads, std::int32_t group,
                             std::int64_t n, CandidateVote vote, std::int64_t k,
                             std::int32_t* chosen) {
  QUIRE_RETURN_IF_ERROR(votes_.reserve(memory_, num_kv_heads * n));
  QUIRE_RETURN_IF_ERROR(compute.choice().candidate_votes({.scores = scores_.buffer.data(),
                                                          .n = n,
                                                          .ld_scores = n,
                                                          .num_kv_heads = num_kv_heads,
                                                          .group = group,
                                                          .vote = vote,
                                                          .votes = votes_.buffer.data()}));
  return compute.choice().best_candidates(votes_.buffer.data(), num_kv_heads, n, n, k, chosen);
}

Result<ChosenLists> ChoiceBuffers::lists(Compute& compute, CandidateRowsArgs args) {
  // Rounding up keeps the arguments of most steps equal to those of the previous step.
  args.most_rows = (args.most_rows + kRowsRoom - 1) / kRowsRoom * kRowsRoom;
  QUIRE_RETURN_IF_ERROR(rows_.reserve(memory_, args.num_kv_heads * args.most_rows));
  QUIRE_RETURN_IF_ERROR(lists_.reserve(memory_, args.num_kv_heads));
  args.rows = rows_.buffer.data();
  args.lists = lists_.buffer.data();
  QUIRE_RETURN_IF_ERROR(compute.choice().candidate_rows(args));
  return ChosenLists{args.lists, args.most_rows};
}

}  // namespace quire
