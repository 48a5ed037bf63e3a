#include "engine/device/team/team_kv.h"

#include <utility>

namespace quire {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

/// Returns the rows of the heads from `head` on.
RawKvView from_head(RawKvView rows, std::int32_t head) {
  rows.data = static_cast<const std::byte*>(rows.data) + head * rows.head_stride;
  return rows;
}

}  // namespace

TeamKv::TeamKv(std::shared_ptr<const TeamSplit> split, DeviceKv& leader, LinearOps& linear)
    : split_(std::move(split)),
      leader_(leader),
      linear_(linear),
      rows_(split_->team()->rank(0), cuda::MemoryKind::kDevice) {
  for (std::int64_t r = 1; r < split_->team()->ranks(); ++r)
    ranks_.push_back(std::make_unique<Rank>(split_->team()->rank(r), split_->tables(r)));
}

Status TeamKv::rotate_and_write(const RopeTable& table, const RopeRotateArgs& queries,
                                const WriteRowsArgs& a) {
  if (!splits(a.dst, a.dst_rows)) return leader_.rotate_and_write(table, queries, a);
  const HeadCut& heads = split_->pages()->heads();
  const std::int64_t n = count_of(a.from),
                     kv_dim = std::int64_t{a.dst.num_kv_heads} * a.dst.head_dim,
                     bytes = 2 * n * kv_dim * kFloat;
  const float* rows = a.k + a.from[0] * a.ld;
  // One row of a stacked projection has K and V side by side.
  if (n > 1 || a.v != a.k + kv_dim) {
    QUIRE_RETURN_IF_ERROR(rows_.reserve(bytes));
    auto* taken = reinterpret_cast<float*>(rows_.data());
    QUIRE_RETURN_IF_ERROR(linear_.take_rows(a.k, a.ld, a.from, kv_dim, taken));
    QUIRE_RETURN_IF_ERROR(linear_.take_rows(a.v, a.ld, a.from, kv_dim, taken + n * kv_dim));
    rows = taken;
  }
  std::vector<void*> there = {nullptr};
  for (const auto& rank : ranks_) {
    QUIRE_RETURN_IF_ERROR(rank->rows.reserve(bytes));
    there.push_back(rank->rows.data());
  }
  QUIRE_RETURN_IF_ERROR(split_->team()->broadcast(rows, there, bytes));
  while (count_of(counting_) < n) counting_.push_back(static_cast<std::int32_t>(counting_.size()));
  std::vector<void*> pages;
  for (std::int64_t r = 0; r < split_->team()->ranks(); ++r) {
    if (heads.size(r) == 0) continue;
    const auto* const own = r == 0 ? rows
                                   : reinterpret_cast<const float*>(ranks_[at(r - 1)]->rows.data());
    WriteRowsArgs part = a;
    part.k = own + std::int64_t{heads.begin(r)} * a.dst.head_dim;
    part.v = part.k + n * kv_dim;
    part.ld = kv_dim;
    part.from = std::span<const std::int32_t>(counting_).first(to_size(n));
    part.dst = split_->pages()->part(r, a.dst, a.dst_rows, pages);
    QUIRE_RETURN_IF_ERROR(of(r).rotate_and_write(table, r == 0 ? queries : RopeRotateArgs{}, part));
  }
  return {};
}

Status TeamKv::place(const RopeTable& table, const MutableKvView& dst,
                     std::span<const StoredRows> rows) {
  std::vector<std::int32_t> dst_rows;
  for (const StoredRows& piece : rows)
    dst_rows.insert(dst_rows.end(), piece.dst_rows.begin(), piece.dst_rows.end());
  if (!splits(dst, dst_rows)) return leader_.place(table, dst, rows);
  const HeadCut& heads = split_->pages()->heads();
  std::vector<StoredRows> part;
  std::vector<void*> pages;
  for (std::int64_t r = 0; r < split_->team()->ranks(); ++r) {
    if (heads.size(r) == 0) continue;
    part.assign(rows.begin(), rows.end());
    for (StoredRows& piece : part) piece.raw = from_head(piece.raw, heads.begin(r));
    QUIRE_RETURN_IF_ERROR(of(r).place(table, split_->pages()->part(r, dst, dst_rows, pages), part));
  }
  return {};
}

Status TeamKv::pack_ahead(std::span<const RawKvView> rows, std::int32_t num_kv_heads,
                          std::int32_t head_dim) {
  const HeadCut& heads = split_->pages()->heads();
  if (rows.empty() || num_kv_heads != heads.heads)
    return leader_.pack_ahead(rows, num_kv_heads, head_dim);
  for (std::int64_t r = 0; r < split_->team()->ranks(); ++r) {
    if (heads.size(r) == 0) continue;
    std::vector<RawKvView> part(rows.begin(), rows.end());
    for (RawKvView& piece : part) piece = from_head(piece, heads.begin(r));
    QUIRE_RETURN_IF_ERROR(of(r).pack_ahead(part, heads.size(r), head_dim));
  }
  return {};
}

void TeamKv::end_packing() {
  for (std::int64_t r = 0; r < split_->team()->ranks(); ++r) of(r).end_packing();
}

Status TeamKv::gather(const KvGatherArgs& args) { return split_->pages()->gather(args); }

Result<std::int64_t> TeamKv::gather_async(const KvGatherArgs& a) {
  for (const KvMove& move : std::span(a.moves, to_size(a.num_moves))) {
    if (split_->pages()->holds(a.src.pages[move.from / kPageTokens]) ||
        split_->pages()->holds(a.dst.pages[move.to / kPageTokens]))
      return Status(Code::kUnimplemented,
                    "KV that is cut over several GPUs is not copied while they compute",
                    "model.split_kv");
  }
  return leader_.gather_async(a);
}

}  // namespace quire
