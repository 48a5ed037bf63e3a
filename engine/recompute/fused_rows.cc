#include "engine/recompute/fused_rows.h"

#include <numeric>
#include <utility>

#include "base/index.h"
#include "kernels/rows/raw_rows.h"

namespace quire {

Status FusedRows::add(const LayerPass& pass, std::int64_t most, std::span<const Row> rows) {
  if (rows.empty()) return {};
  Layer to{.layer = pass.layer, .first = held_, .dtype = rows.front().block.dtype};
  QUIRE_RETURN_IF_ERROR(fresh_.reserve(pass.compute->memory(), most * 2 * kv_dim()));
  std::vector<std::int32_t> from;
  std::vector<RawKvView> stored;  // of neighbouring rows of a block together
  for (std::size_t i = 0; i < rows.size();) {
    const Row& first = rows[i];
    std::size_t n = 0;
    for (; i + n < rows.size() && rows[i + n].block.data == first.block.data &&
           rows[i + n].block_row == first.block_row + static_cast<std::int64_t>(n);
         ++n) {
      from.push_back(rows[i + n].pass_row);
      to.cache_rows.push_back(rows[i + n].cache_row);
      to.positions.push_back(rows[i + n].position);
    }
    stored.push_back(raw_rows(first.block, first.block_row, static_cast<std::int64_t>(n)));
    i += n;
  }
  const auto n = count_of(from);
  held_ += n;
  QUIRE_CHECK(held_ <= most, "more rows are fused than were announced");
  float* k = keys(to);
  LinearOps& linear = pass.compute->linear();
  QUIRE_RETURN_IF_ERROR(linear.take_rows(pass.qkv.k, pass.qkv.ld, from, kv_dim(), k));
  QUIRE_RETURN_IF_ERROR(
      linear.take_rows(pass.qkv.v, pass.qkv.ld, from, kv_dim(), k + n * kv_dim()));
  layers_.push_back(std::move(to));
  return pass.compute->kv().blend_stored({.k = k,
                                          .v = k + n * kv_dim(),
                                          .ld = kv_dim(),
                                          .stored = stored,
                                          .num_kv_heads = num_kv_heads_,
                                          .head_dim = head_dim_});
}

Status FusedRows::write(WorkingCache& cache, Compute& compute) {
  for (const Layer& from : layers_) QUIRE_RETURN_IF_ERROR(write_layer(cache, compute, from));
  return {};
}

Status FusedRows::write_layer(WorkingCache& cache, Compute& compute, const Layer& from) {
  std::vector<std::int32_t> all(from.cache_rows.size());
  std::iota(all.begin(), all.end(), 0);
  QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, cache.writable(from.layer, from.cache_rows));
  const float* k = keys(from);
  return compute.kv().write_rows(rope_, {.k = k,
                                         .v = k + count_of(all) * kv_dim(),
                                         .ld = kv_dim(),
                                         .from = all,
                                         .positions = from.positions,
                                         .dst_rows = from.cache_rows,
                                         .raw_dtype = from.dtype,
                                         .dst = pages});
}

void FusedRows::clear() {
  layers_.clear();
  fresh_ = ComputeBuffer<float>();
  held_ = 0;
}

}  // namespace quire
