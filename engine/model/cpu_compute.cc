#include <algorithm>
#include <cstring>

#include "engine/model/compute.h"
#include "kernels/kv.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

class CpuMatrix final : public ComputeMatrix {
 public:
  explicit CpuMatrix(std::unique_ptr<PackedMatrix> packed) : packed_(std::move(packed)) {}
  std::int64_t n() const override { return packed_->n(); }
  std::int64_t k() const override { return packed_->k(); }
  std::int64_t bytes() const override { return packed_->bytes(); }
  const PackedMatrix& packed() const { return *packed_; }

 private:
  const std::unique_ptr<PackedMatrix> packed_;
};

class CpuCompute final : public Compute {
 public:
  std::string name() const override { return "cpu"; }
  std::shared_ptr<ComputeMemory> memory() const override { return nullptr; }
  std::shared_ptr<Compute> twin() const override { return make_cpu_compute(); }

  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format) override {
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<PackedMatrix> packed,
                           pack_weights(parts, k, dtype, format));
    return std::unique_ptr<ComputeMatrix>(std::make_unique<CpuMatrix>(std::move(packed)));
  }
  Result<ComputeValues> upload(std::span<const std::byte> values) override {
    auto copy = std::make_shared<std::vector<std::byte>>(values.begin(), values.end());
    const auto* data = copy->data();
    return ComputeValues{std::shared_ptr<const void>(std::move(copy), data),
                         static_cast<std::int64_t>(values.size())};
  }
  Result<std::shared_ptr<const void>> register_rope(const RopeTable&) override {
    return std::shared_ptr<const void>();
  }

  Status embed(const void* table, DType dtype, std::int64_t, std::int64_t dim,
               std::span<const std::int32_t> ids, float* x) override {
    parallel_for(static_cast<std::int64_t>(ids.size()), 64,
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t r = begin; r < end; ++r) {
                     const std::int64_t base = ids[static_cast<std::size_t>(r)] * dim;
                     float* out = x + r * dim;
                     if (dtype == DType::kF32) {
                       std::memcpy(out, static_cast<const float*>(table) + base,
                                   static_cast<std::size_t>(dim) * sizeof(float));
                     } else {
                       for (std::int64_t c = 0; c < dim; ++c)
                         out[c] = load_f32(table, dtype, base + c);
                     }
                   }
                 });
    return {};
  }

  Status norm(const RmsNormArgs& args) override { return rms_norm(args); }
  Status product(const ProductArgs& a) override {
    return static_cast<const CpuMatrix&>(*a.weights)
        .packed()
        .multiply(a.x, a.rows, a.ldx, a.bias, a.y, a.ldy);
  }
  Status add_product(const ProductArgs& a, float* scratch) override {
    const std::int64_t n = a.weights->n();
    QUIRE_RETURN_IF_ERROR(static_cast<const CpuMatrix&>(*a.weights)
                              .packed()
                              .multiply(a.x, a.rows, a.ldx, a.bias, scratch, n));
    add_inplace(a.y, scratch, a.rows * n);
    return {};
  }
  Status swiglu(const SwigluArgs& args) override { return quire::swiglu(args); }
  Status sum_columns(const ColumnSumsArgs& args) override { return column_sums(args); }

  /// Normalises each token's heads, which are dense as rms_norm() requires.
  Status norm_heads(const HeadNormArgs& a) override {
    std::vector<Status> failed(static_cast<std::size_t>(a.rows));
    parallel_for(a.rows, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        float* q = a.qkv + r * a.ld;
        float* k = q + std::int64_t{a.num_heads} * a.head_dim;
        Status s = rms_norm({.x = q,
                             .weight = a.q_norm,
                             .out = q,
                             .rows = a.num_heads,
                             .dim = a.head_dim,
                             .eps = a.eps});
        if (s.ok())
          s = rms_norm({.x = k,
                        .weight = a.k_norm,
                        .out = k,
                        .rows = a.num_kv_heads,
                        .dim = a.head_dim,
                        .eps = a.eps});
        failed[static_cast<std::size_t>(r)] = std::move(s);
      }
    });
    for (const Status& s : failed) QUIRE_RETURN_IF_ERROR(s);
    return {};
  }

  Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                   std::int64_t dim, float* out) override {
    for (const std::int32_t row : rows) {
      std::memcpy(out, x + row * ldx, static_cast<std::size_t>(dim) * sizeof(float));
      out += dim;
    }
    return {};
  }
  Status rotate(const RopeTable& table, const RopeRotateArgs& args) override {
    return rope_rotate(table, args);
  }

  Status write_rows(const RopeTable& table, const WriteRowsArgs& a) override {
    const auto n = static_cast<std::int64_t>(a.from.size());
    if (n == 0) return {};
    const std::int64_t kv_dim = std::int64_t{a.dst.num_kv_heads} * a.dst.head_dim;
    const float *k = a.k, *v = a.v;
    std::int64_t ld = a.ld;
    // The rows are scattered: gather those to write.
    if (a.from.front() != 0 || a.from.back() + 1 != n) {
      ld = 2 * kv_dim;
      if (gathered_.size() < static_cast<std::size_t>(n * ld))
        gathered_.resize(static_cast<std::size_t>(n * ld));
      gather(a, kv_dim);
      k = gathered_.data();
      v = k + kv_dim;
    }
    const auto size = static_cast<std::int64_t>(dtype_bytes(a.raw_dtype)),
               row_stride = a.dst.head_dim * size;
    if (raw_.size() < static_cast<std::size_t>(n * 2 * kv_dim * size))
      raw_.resize(static_cast<std::size_t>(n * 2 * kv_dim * size));
    QUIRE_RETURN_IF_ERROR(kv_pack({.k = k,
                                   .v = v,
                                   .rows = n,
                                   .ldk = ld,
                                   .ldv = ld,
                                   .num_kv_heads = a.dst.num_kv_heads,
                                   .head_dim = a.dst.head_dim,
                                   .dtype = a.raw_dtype,
                                   .out = raw_.data()}));
    const RawKvView raw{.data = raw_.data(),
                        .num_rows = n,
                        .dtype = a.raw_dtype,
                        .head_stride = 2 * n * row_stride,
                        .kv_stride = n * row_stride,
                        .row_stride = row_stride};
    return kv_place(table, {.src = raw,
                            .dst = a.dst,
                            .positions = a.positions.data(),
                            .dst_rows = a.dst_rows.data(),
                            .first_dst_row = 0});
  }

  Status place(const RopeTable& table, const MutableKvView& dst,
               std::span<const StoredRows> rows) override {
    for (const StoredRows& r : rows)
      QUIRE_RETURN_IF_ERROR(kv_place(table, {.src = r.raw,
                                             .dst = dst,
                                             .positions = r.positions.data(),
                                             .dst_rows = r.dst_rows.data(),
                                             .first_dst_row = 0}));
    return {};
  }

  Status attend(const AttentionArgs& args) override { return attention(args); }

  Status attend_each(const AttentionArgs& args,
                     std::span<const SequenceAttention> sequences) override {
    for (std::int64_t i = 0; i < args.rows; ++i) {
      const SequenceAttention& s = sequences[static_cast<std::size_t>(i)];
      AttentionArgs one = args;
      one.q = args.q + i * args.ldq;
      one.out = args.out + i * args.ldo;
      one.query_positions = &s.position;
      one.rows = 1;
      one.kv = s.kv;
      one.lse = nullptr;
      QUIRE_RETURN_IF_ERROR(s.lists != nullptr ? attention_rows({one, s.lists}) : attention(one));
    }
    return {};
  }

  Status read_bytes(const void* x, std::int64_t bytes, void* out) override {
    if (bytes > 0) std::memcpy(out, x, static_cast<std::size_t>(bytes));
    return {};
  }

 private:
  void gather(const WriteRowsArgs& a, std::int64_t kv_dim) {
    const auto bytes = static_cast<std::size_t>(kv_dim) * sizeof(float);
    float* to = gathered_.data();
    for (const std::int32_t row : a.from) {
      std::memcpy(to, a.k + row * a.ld, bytes);
      std::memcpy(to + kv_dim, a.v + row * a.ld, bytes);
      to += 2 * kv_dim;
    }
  }

  std::vector<float> gathered_;  // scratch of write_rows()
  std::vector<std::uint8_t> raw_;
};

}  // namespace

Status Compute::draw(const float*, std::int64_t, std::span<const SampleRule>, std::int32_t*) {
  return Status::unimplemented("tokens are drawn where their logits are read");
}

Status Compute::meet_stored(const RopeTable&, const MeetStoredArgs&) {
  return Status::unimplemented("recomputed rows meet stored ones in ordinary memory");
}
Status Compute::score_blocks(const RopeTable&, std::int32_t, std::int32_t,
                             std::span<const ScoredBlocks>) {
  return Status::unimplemented("blocks are scored in ordinary memory");
}

std::shared_ptr<Compute> make_cpu_compute() { return std::make_shared<CpuCompute>(); }

}  // namespace quire
