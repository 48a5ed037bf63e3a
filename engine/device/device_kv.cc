#include "engine/device/device_kv.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/device/staged_view.h"

namespace quire {
namespace {

/// Joins the positions and destinations of all pieces.
void join(std::span<const StoredRows> rows, std::vector<std::int32_t>& positions,
          std::vector<std::int32_t>& dst_rows) {
  for (const StoredRows& piece : rows) {
    positions.insert(positions.end(), piece.positions.begin(), piece.positions.end());
    dst_rows.insert(dst_rows.end(), piece.dst_rows.begin(), piece.dst_rows.end());
  }
}

}  // namespace

DeviceKv::DeviceKv(const std::shared_ptr<DeviceMemory>& memory,
                   std::shared_ptr<DeviceTables> tables, ArgumentStage& stage)
    : memory_(memory), tables_(std::move(tables)), stage_(stage), feed_(memory), ready_(memory) {
  for (int i = 0; i < kCopyEvents; ++i) copied_.emplace_back(memory);
}

Status DeviceKv::rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                                  const WriteRowsArgs& a) {
  const auto n = count_of(a.from);
  if (n == 0 && queries.rows == 0) return {};
  cuda::NewRowsArgs rows{.q = queries,
                         .k = a.k,
                         .v = a.v,
                         .ld = a.ld,
                         .from = nullptr,
                         .num_rows = n,
                         .positions = nullptr,
                         .dst_rows = nullptr,
                         .raw_dtype = a.raw_dtype,
                         .dst = a.dst};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  if (queries.rows > 0) {
    QUIRE_ASSIGN_OR_RETURN(rows.q.positions,
                           stage_.put(std::span(queries.positions, to_size(queries.rows))));
  }
  if (n > 0) {
    QUIRE_ASSIGN_OR_RETURN(const Target to, target(a.dst, a.positions, a.dst_rows));
    rows.dst = to.dst;
    rows.positions = to.positions;
    rows.dst_rows = to.dst_rows;
    if (a.from.back() + 1 != n) {  // else they are the first ones
      QUIRE_ASSIGN_OR_RETURN(rows.from, stage_.put(a.from));
    }
  }
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(cuda::WriteNewRowsArgs{tables_->of(table), rows});
}

Result<DeviceKv::Target> DeviceKv::target(const MutableKvView& dst,
                                          std::span<const std::int32_t> positions,
                                          std::span<const std::int32_t> dst_rows) {
  const auto [least, most] = std::ranges::minmax(dst_rows);
  const std::int32_t first_page = least / kPageTokens, last_page = most / kPageTokens;
  std::vector<std::int32_t> rows(dst_rows.begin(), dst_rows.end());
  for (std::int32_t& r : rows) r -= first_page * kPageTokens;
  Target out{dst, nullptr, nullptr};
  out.dst.num_rows = dst.num_rows - first_page * kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(out.dst.pages,
                         stage_.put(std::span<void* const>(dst.pages + first_page,
                                                           to_size(last_page - first_page + 1))));
  QUIRE_ASSIGN_OR_RETURN(out.positions, stage_.put(positions));
  QUIRE_ASSIGN_OR_RETURN(out.dst_rows, stage_.put(std::span<const std::int32_t>(rows)));
  return out;
}

Status DeviceKv::place_rows(const RopeTable& table, const RawKvView& raw, const MutableKvView& dst,
                            std::span<const std::int32_t> positions,
                            std::span<const std::int32_t> dst_rows) {
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(const Target to, target(dst, positions, dst_rows));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(cuda::PlaceRowsArgs{tables_->of(table),
                                          {.src = raw,
                                           .dst = to.dst,
                                           .positions = to.positions,
                                           .dst_rows = to.dst_rows,
                                           .first_dst_row = 0}});
}

Status DeviceKv::place(const RopeTable& table, const MutableKvView& dst,
                       std::span<const StoredRows> rows) {
  std::vector<std::int32_t> positions, dst_rows;
  join(rows, positions, dst_rows);
  if (positions.empty()) return {};
  std::vector<RawKvView> raw_rows;
  for (const StoredRows& piece : rows) raw_rows.push_back(piece.raw);
  QUIRE_ASSIGN_OR_RETURN(const RawKvView raw,
                         feed_.upload(raw_rows, dst.num_kv_heads, dst.head_dim));
  const Status placed = place_rows(table, raw, dst, positions, dst_rows);
  QUIRE_RETURN_IF_ERROR(feed_.placed());  // also after an error: the slot has been used
  return placed;
}

Status DeviceKv::blend_stored(const BlendStoredArgs& a) {
  if (a.stored.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const RawKvView raw, feed_.upload(a.stored, a.num_kv_heads, a.head_dim));
  const Status blended = memory_->run(cuda::BlendRowsArgs{.k = a.k,
                                                          .v = a.v,
                                                          .rows = raw.num_rows,
                                                          .ld = a.ld,
                                                          .stored = raw,
                                                          .num_kv_heads = a.num_kv_heads,
                                                          .head_dim = a.head_dim});
  QUIRE_RETURN_IF_ERROR(feed_.placed());  // also after an error: the slot has been used
  return blended;
}

Status DeviceKv::block_means(const RopeTable& table, const BlockMeansArgs& a) {
  return memory_->run(cuda::SummariseBlocksArgs{tables_->of(table),
                                                {.raw = a.raw,
                                                 .num_kv_heads = a.num_kv_heads,
                                                 .head_dim = a.head_dim,
                                                 .block_tokens = a.block_tokens,
                                                 .first_position = a.first_position,
                                                 .mean = a.means,
                                                 .min = nullptr,
                                                 .max = nullptr}});
}

Status DeviceKv::gather(const KvGatherArgs& args) {
  if (args.num_moves == 0) return {};
  QUIRE_ASSIGN_OR_RETURN(const KvGatherArgs there, staged_gather(stage_, args));
  return memory_->run(cuda::GatherRowsArgs{there, cuda::Lane::kCompute});
}

Result<std::int64_t> DeviceKv::gather_async(const KvGatherArgs& args) {
  QUIRE_RETURN_IF_ERROR(memory_->leave_step());
  QUIRE_ASSIGN_OR_RETURN(const KvGatherArgs there, staged_gather(stage_, args));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::RecordEventArgs{ready_.number(), cuda::Lane::kCompute}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{ready_.number(), cuda::Lane::kCopies}));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::GatherRowsArgs{there, cuda::Lane::kCopies}));
  const std::int64_t copy = copies_++;
  QUIRE_RETURN_IF_ERROR(memory_->run(
      cuda::RecordEventArgs{copied_[at(copy) % copied_.size()].number(), cuda::Lane::kCopies}));
  return copy;
}

/// Makes the computing stream wait for the copy's event. An event that a later copy reused fires
/// later, which is correct and rarely delays anything.
Status DeviceKv::wait_for(std::int64_t copy) {
  QUIRE_RETURN_IF_ERROR(memory_->leave_step());
  return memory_->run(
      cuda::HoldArgs{copied_[at(copy) % copied_.size()].number(), cuda::Lane::kCompute});
}

}  // namespace quire
