#include "engine/device/device_hooks.h"

#include "engine/device/staged_view.h"

namespace quire {
namespace {

constexpr std::int64_t kUnitsRoom = 64;  // pages come one by one: most steps' arrays lie where those of the step before lay

}  // namespace

Status DeviceHooks::attention_scores(const AttentionScoresArgs& args) {
  if (args.rows == 0) return {};
  AttentionScoresArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.query_positions, stage_.put(std::span(args.query_positions, static_cast<std::size_t>(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::attention_mass(const AttentionMassArgs& args) {
  if (args.rows == 0 || args.num_stretches == 0) return {};
  AttentionMassArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.query_positions, stage_.put(std::span(args.query_positions, static_cast<std::size_t>(args.rows))));
  QUIRE_ASSIGN_OR_RETURN(a.stretches, stage_.put(std::span(args.stretches, static_cast<std::size_t>(args.num_stretches))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::attention_stats(const AttentionStatsArgs& args) {
  if (args.rows == 0 || args.num_columns == 0) return {};
  AttentionStatsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::block_means(const RopeTable& table, const BlockMeansArgs& a) {
  return memory_->run(cuda::SummariseBlocksArgs{table_of_(table), {.raw = a.raw, .num_kv_heads = a.num_kv_heads, .head_dim = a.head_dim, .block_tokens = a.block_tokens,
                                                                    .first_position = a.first_position, .mean = a.means, .min = nullptr, .max = nullptr}});
}

Status DeviceHooks::page_bounds(const PageBoundsArgs& args) {
  if (args.num_pages == 0) return {};
  PageBoundsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(a.pages, stage_.put(std::span(args.pages, static_cast<std::size_t>(args.num_pages))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::key_products(const KeyProductsArgs& args) {
  if (args.num_rows == 0) return {};
  KeyProductsArgs a = args;
  const std::int64_t pages = (args.first_row + args.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv.pages, stage_.put(std::span(args.kv.pages, static_cast<std::size_t>(pages)), kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  a.kv.positions = nullptr;
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::best_candidates(const float* scores, std::int64_t rows, std::int64_t n, std::int64_t k, std::int32_t* chosen) {
  return memory_->run(cuda::TopKArgs{.scores = scores, .rows = rows, .n = n, .k = k, .order = cuda::TopKOrder::kAscendingIndex, .out = chosen});
}

Status DeviceHooks::candidate_rows(const CandidateRowsArgs& args) {
  CandidateRowsArgs a = args;
  if (args.units != nullptr) {
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(a.units, stage_.put(std::span(args.units, static_cast<std::size_t>(args.num_units)), kUnitsRoom * static_cast<std::int64_t>(sizeof(KvStretch))));
    QUIRE_RETURN_IF_ERROR(stage_.send());
  }
  return memory_->run(a);
}

Status DeviceHooks::sum_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx, float* out) {
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::CopyArgs{out, x, dim * static_cast<std::int64_t>(sizeof(float))}));
  return rows == 1 ? Status() : memory_->run(ColumnSumsArgs{.x = x + ldx, .rows = rows - 1, .dim = dim, .ldx = ldx, .sums = out});
}

}  // namespace quire
