#include "engine/recompute/fused_rows.h"

#include <cstring>
#include <utility>

#include "engine/recompute/fusion.h"
#include "engine/recompute/stored_row.h"
#include "kernels/kv.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Status FusedRows::add(const LayerPass& pass, DType kv_dtype, std::int64_t most,
                      std::vector<Row> rows) {
  if (rows.empty()) return {};
  kv_dtype_ = kv_dtype;
  Layer to{.layer = pass.layer, .rows = std::move(rows), .raw = {}, .first = held_};
  const auto memory = pass.compute->memory();
  if (memory == nullptr) {
    QUIRE_RETURN_IF_ERROR(blend(pass, kv_dtype, to));
  } else {
    QUIRE_RETURN_IF_ERROR(fresh_.reserve(memory, most * 2 * kv_dim()));
    std::vector<std::int32_t> from;
    for (const Row& row : to.rows) from.push_back(row.pass_row);
    float* k = fresh_.data() + to.first * 2 * kv_dim();
    held_ += static_cast<std::int64_t>(from.size());
    QUIRE_CHECK(held_ <= most, "more rows are fused than were announced");
    QUIRE_RETURN_IF_ERROR(pass.compute->take_rows(pass.qkv.k, pass.qkv.ld, from, kv_dim(), k));
    QUIRE_RETURN_IF_ERROR(
        pass.compute->take_rows(pass.qkv.v, pass.qkv.ld, from, kv_dim(),
                                k + static_cast<std::int64_t>(from.size()) * kv_dim()));
  }
  layers_.push_back(std::move(to));
  return {};
}

Status FusedRows::blend(const LayerPass& pass, DType kv_dtype, Layer& to) {
  const auto n = static_cast<std::int64_t>(to.rows.size());
  const std::size_t dim = idx(kv_dim());
  blended_.resize(idx(n) * 2 * dim);
  parallel_for(n, 8, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> old(2 * dim);
    for (std::int64_t i = begin; i < end; ++i) {
      const Row& row = to.rows[idx(i)];
      load_stored_row(row.block, row.block_row, num_kv_heads_, head_dim_, old.data(),
                      old.data() + dim);
      float* out = blended_.data() + idx(i) * 2 * dim;
      std::memcpy(out, pass.qkv.k + row.pass_row * pass.qkv.ld, dim * sizeof(float));
      std::memcpy(out + dim, pass.qkv.v + row.pass_row * pass.qkv.ld, dim * sizeof(float));
      for (const std::size_t at : {std::size_t{0}, dim}) {
        const std::span<float> fresh(out + at, dim);
        const std::span<const float> before(old.data() + at, dim);
        fuse(fresh, before, fusion_weight(fresh, before));
      }
    }
  });
  to.raw.resize(idx(n) * 2 * dim * dtype_bytes(kv_dtype));
  return kv_pack({.k = blended_.data(),
                  .v = blended_.data() + dim,
                  .rows = n,
                  .ldk = 2 * kv_dim(),
                  .ldv = 2 * kv_dim(),
                  .num_kv_heads = num_kv_heads_,
                  .head_dim = head_dim_,
                  .dtype = kv_dtype,
                  .out = to.raw.data()});
}

Status FusedRows::write(WorkingCache& cache, Compute& compute) {
  for (const Layer& from : layers_)
    QUIRE_RETURN_IF_ERROR(from.raw.empty() ? write_fresh(cache, compute, from)
                                           : write_blended(cache, from));
  return {};
}

Status FusedRows::write_blended(WorkingCache& cache, const Layer& from) const {
  const auto n = static_cast<std::int64_t>(from.rows.size()),
             row = head_dim_ * static_cast<std::int64_t>(dtype_bytes(kv_dtype_));
  std::vector<std::int32_t> rows;
  for (const Row& r : from.rows) rows.push_back(r.cache_row);
  return cache.place_rows(from.layer, rope_,
                          {.data = from.raw.data(),
                           .num_rows = n,
                           .dtype = kv_dtype_,
                           .head_stride = 2 * n * row,
                           .kv_stride = n * row,
                           .row_stride = row},
                          rows);
}

Status FusedRows::write_fresh(WorkingCache& cache, Compute& compute, const Layer& from) {
  std::vector<std::int32_t> rows, positions;
  for (const Row& r : from.rows) {
    rows.push_back(r.cache_row);
    positions.push_back(r.position);
  }
  std::vector<StoredRows> stored;
  for (std::size_t i = 0; i < from.rows.size(); ++i) {
    stored.push_back({stored_rows(from.rows[i].block, from.rows[i].block_row, 1),
                      std::span<const std::int32_t>(positions).subspan(i, 1),
                      std::span<const std::int32_t>(rows).subspan(i, 1)});
  }
  QUIRE_ASSIGN_OR_RETURN(const MutableKvView pages, cache.writable(from.layer, rows));
  const float* k = fresh_.data() + from.first * 2 * kv_dim();
  return compute.meet_stored(rope_, {.k = k,
                                     .v = k + static_cast<std::int64_t>(rows.size()) * kv_dim(),
                                     .ld = kv_dim(),
                                     .stored = stored,
                                     .dst = pages});
}

void FusedRows::clear() {
  layers_.clear();
  fresh_ = {};
  held_ = 0;
}

}  // namespace quire
