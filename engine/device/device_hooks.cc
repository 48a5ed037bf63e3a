#include "engine/device/device_hooks.h"

#include <vector>

#include "engine/device/staged_view.h"

namespace quire {
namespace {

// Pages are added one by one; the room keeps most steps' arrays at the previous step's addresses.
constexpr std::int64_t kUnitsRoom = 64;

}  // namespace

Status DeviceHooks::attention_scores(const AttentionScoresArgs& args) {
  if (args.rows == 0) return {};
  AttentionScoresArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(
      a.query_positions,
      stage_.put(std::span(args.query_positions, static_cast<std::size_t>(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::attention_mass(const AttentionMassArgs& args) {
  if (args.rows == 0 || args.num_ranges == 0) return {};
  AttentionMassArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(
      a.query_positions,
      stage_.put(std::span(args.query_positions, static_cast<std::size_t>(args.rows))));
  QUIRE_ASSIGN_OR_RETURN(
      a.ranges, stage_.put(std::span(args.ranges, static_cast<std::size_t>(args.num_ranges))));
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
  return memory_->run(cuda::SummariseBlocksArgs{table_of_(table),
                                                {.raw = a.raw,
                                                 .num_kv_heads = a.num_kv_heads,
                                                 .head_dim = a.head_dim,
                                                 .block_tokens = a.block_tokens,
                                                 .first_position = a.first_position,
                                                 .mean = a.means,
                                                 .min = nullptr,
                                                 .max = nullptr}});
}

Status DeviceHooks::page_bounds(const PageBoundsArgs& args) {
  if (args.num_pages == 0) return {};
  PageBoundsArgs a = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(
      a.pages, stage_.put(std::span(args.pages, static_cast<std::size_t>(args.num_pages))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

Status DeviceHooks::key_products(const KeyProductsArgs& args) {
  if (args.num_rows == 0) return {};
  KeyProductsArgs a = args;
  const std::int64_t pages = (args.first_row + args.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(
      a.kv.pages, stage_.put(std::span(args.kv.pages, static_cast<std::size_t>(pages)),
                             kRowsRoom / kPageTokens * static_cast<std::int64_t>(sizeof(void*))));
  a.kv.positions = nullptr;
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(a);
}

/// Uploads only the pages that the moves touch: a separate list for each side, in the order of the
/// moves.
Result<KvGatherArgs> DeviceHooks::staged(const KvGatherArgs& args) {
  QUIRE_RETURN_IF_ERROR(internal::check_gather(args));
  std::vector<const void*> sources;
  std::vector<void*> targets;
  std::vector<KvMove> moves(args.moves, args.moves + args.num_moves);
  const auto pages_of = [](auto* const* pages, std::int32_t& row, std::int32_t rows, auto& out) {
    const std::int32_t first = row / kPageTokens, last = (row + rows - 1) / kPageTokens;
    row = static_cast<std::int32_t>(out.size()) * kPageTokens + row % kPageTokens;
    out.insert(out.end(), pages + first, pages + last + 1);
  };
  for (KvMove& move : moves) {
    pages_of(args.src.pages, move.from, move.rows, sources);
    pages_of(args.dst.pages, move.to, move.rows, targets);
  }
  KvGatherArgs a = args;
  a.src.num_rows = static_cast<std::int64_t>(sources.size()) * kPageTokens;
  a.dst.num_rows = static_cast<std::int64_t>(targets.size()) * kPageTokens;
  a.src.positions = nullptr;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(a.src.pages, stage_.put(std::span<const void* const>(sources)));
  QUIRE_ASSIGN_OR_RETURN(a.dst.pages, stage_.put(std::span<void* const>(targets)));
  QUIRE_ASSIGN_OR_RETURN(a.moves, stage_.put(std::span<const KvMove>(moves)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return a;
}

Status DeviceHooks::gather_rows(const KvGatherArgs& args) {
  if (args.num_moves == 0) return {};
  QUIRE_ASSIGN_OR_RETURN(const KvGatherArgs there, staged(args));
  return memory_->run(cuda::GatherRowsArgs{there, cuda::Lane::kCompute});
}

Result<std::int64_t> DeviceHooks::gather_async(const KvGatherArgs& args) {
  QUIRE_RETURN_IF_ERROR(memory_->leave_step());
  QUIRE_ASSIGN_OR_RETURN(const KvGatherArgs there, staged(args));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::RecordEventArgs{ready_, cuda::Lane::kCompute}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{ready_, cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::GatherRowsArgs{there, cuda::Lane::kCopies}));
  const std::int64_t copy = copies_++;
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::RecordEventArgs{
      copied_[static_cast<std::size_t>(copy) % copied_.size()], cuda::Lane::kCopies}));
  return copy;
}

/// Makes the computing stream wait for the copy's event. An event that a later copy reused fires
/// later, which is correct and rarely delays anything.
Status DeviceHooks::hold_for(std::int64_t copy) {
  QUIRE_RETURN_IF_ERROR(memory_->leave_step());
  return memory_->run(cuda::HoldArgs{copied_[static_cast<std::size_t>(copy) % copied_.size()],
                                     cuda::Lane::kCompute});
}

Status DeviceHooks::best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                    std::int64_t k, std::int32_t* chosen) {
  return memory_->run(cuda::TopKArgs{.scores = scores,
                                     .rows = rows,
                                     .n = n,
                                     .k = k,
                                     .order = cuda::TopKOrder::kAscendingIndex,
                                     .out = chosen});
}

Status DeviceHooks::candidate_rows(const CandidateRowsArgs& args) {
  CandidateRowsArgs a = args;
  if (args.units != nullptr) {
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(
        a.units, stage_.put(std::span(args.units, static_cast<std::size_t>(args.num_units)),
                            kUnitsRoom * static_cast<std::int64_t>(sizeof(RowRange))));
    QUIRE_RETURN_IF_ERROR(stage_.send());
  }
  return memory_->run(a);
}

Status DeviceHooks::sum_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                             float* out) {
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::CopyArgs{out, x, dim * static_cast<std::int64_t>(sizeof(float))}));
  return rows == 1 ? Status()
                   : memory_->run(ColumnSumsArgs{
                         .x = x + ldx, .rows = rows - 1, .dim = dim, .ldx = ldx, .sums = out});
}

}  // namespace quire
