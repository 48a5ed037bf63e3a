#include "engine/recompute/fused_rows.h"

#include <utility>

#include "base/index.h"
#include "kernels/rows/raw_rows.h"

namespace quire {
Status FusedRows::add(const LayerPass& pass, std::int64_t most, std::vector<Row> rows) {
  if (rows.empty()) return {};
  Layer to{.layer = pass.layer, .rows = std::move(rows), .first = held_};
  QUIRE_RETURN_IF_ERROR(fresh_.reserve(pass.compute->memory(), most * 2 * kv_dim()));
  std::vector<std::int32_t> from;
  for (const Row& row : to.rows) from.push_back(row.pass_row);
  const auto n = count_of(from);
  float* k = fresh_.data() + to.first * 2 * kv_dim();
  held_ += n;
  QUIRE_CHECK(held_ <= most, "more rows are fused than were announced");
  LinearOps& linear = pass.compute->linear();
  QUIRE_RETURN_IF_ERROR(linear.take_rows(pass.qkv.k, pass.qkv.ld, from, kv_dim(), k));
  QUIRE_RETURN_IF_ERROR(
      linear.take_rows(pass.qkv.v, pass.qkv.ld, from, kv_dim(), k + n * kv_dim()));
  layers_.push_back(std::move(to));
  return {};
}

Status FusedRows::write(WorkingCache& cache, Compute& compute) {
  for (const Layer& from : layers_) QUIRE_RETURN_IF_ERROR(write_layer(cache, compute, from));
  return {};
}

Status FusedRows::write_layer(WorkingCache& cache, Compute& compute, const Layer& from) {
  std::vector<std::int32_t> rows, positions;
  for (const Row& r : from.rows) {
    rows.push_back(r.cache_row);
    positions.push_back(r.position);
  }
  std::vector<StoredRows> stored;
  for (std::size_t i = 0; i < from.rows.size(); ++i) {
    stored.push_back({raw_rows(from.rows[i].block, from.rows[i].block_row, 1),
                      std::span<const std::int32_t>(positions).subspan(i, 1),
                      std::span<const std::int32_t>(rows).subspan(i, 1)});
  }
  QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, cache.writable(from.layer, rows));
  const float* k = fresh_.data() + from.first * 2 * kv_dim();
  return compute.kv().blend_stored(
      rope_,
      {.k = k, .v = k + count_of(rows) * kv_dim(), .ld = kv_dim(), .stored = stored, .dst = pages});
}

void FusedRows::clear() {
  layers_.clear();
  fresh_ = ComputeBuffer<float>();
  held_ = 0;
}

}  // namespace quire
