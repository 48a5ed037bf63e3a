#include "engine/device/device_compute.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "engine/device/block_scoring.h"
#include "engine/device/device_hooks.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_weights.h"
#include "engine/device/staged_view.h"
#include "engine/device/stored_rows_feed.h"

namespace quire {
namespace {

using cuda::MemoryKind;

/// The bytes of partial results of decode attention at once, if one query row needs no more.
constexpr std::int64_t kScratchBytes = std::int64_t{64} << 20;

/// Products with up to kFewRows rows read int8, w8 and w4 weights as they are, kGemvRows at a time.
/// Products with more rows expand the weights to bf16 in tiles of kTileBytes.
constexpr std::int64_t kFewRows = 16, kTileBytes = std::int64_t{64} << 20;

/// Returns outputs [first, first + n) of a matrix.
cuda::GroupedWeights rows_of(const cuda::GroupedWeights& w, std::int64_t first, std::int64_t n) {
  const std::int64_t segments = first * cuda::row_segments(w.kind, w.k);
  const std::int64_t groups = segments * cuda::segment_groups(w.kind);
  return {w.numbers + segments * cuda::kSegmentBytes,
          w.scales + groups,
          w.minimums == nullptr ? nullptr : w.minimums + groups,
          n,
          w.k,
          w.kind};
}

/// Joins the positions and destinations of all pieces.
void join(std::span<const StoredRows> rows, std::vector<std::int32_t>& positions,
          std::vector<std::int32_t>& dst_rows) {
  for (const StoredRows& piece : rows) {
    positions.insert(positions.end(), piece.positions.begin(), piece.positions.end());
    dst_rows.insert(dst_rows.end(), piece.dst_rows.begin(), piece.dst_rows.end());
  }
}

/// DeviceState is shared by twins.
struct DeviceState {
  explicit DeviceState(std::shared_ptr<cuda::DeviceOps> ops)
      : memory(std::make_shared<DeviceMemory>(std::move(ops))) {}
  const std::shared_ptr<DeviceMemory> memory;
  std::mutex mu;
  std::map<const RopeTable*, cuda::DeviceRopeTable> tables;  // guarded by mu
};

class DeviceCompute final : public Compute {
 public:
  DeviceCompute(std::shared_ptr<DeviceState> state, std::string name)
      : state_(std::move(state)),
        name_(std::move(name)),
        memory_(state_->memory),
        stage_(memory_),
        rounded_(memory_, MemoryKind::kDevice),
        rows_(memory_, MemoryKind::kDevice),
        raw_(memory_, MemoryKind::kDevice),
        expanded_(memory_, MemoryKind::kDevice),
        scratch_(memory_, MemoryKind::kDevice),
        pinned_(memory_, MemoryKind::kPinned),
        feed_(memory_),
        scoring_(memory_),
        hooks_(memory_, [this](const RopeTable& table) { return table_of(table); }) {}

  std::string name() const override { return name_; }
  std::shared_ptr<ComputeMemory> memory() const override { return memory_; }
  std::shared_ptr<Compute> twin() const override {
    return std::make_shared<DeviceCompute>(state_, name_);
  }

  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format) override {
    return upload_matrix(memory_, parts, k, dtype, format);
  }
  Result<ComputeValues> upload(std::span<const std::byte> values) override {
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> data, quire::upload(memory_, values));
    return ComputeValues{std::move(data), static_cast<std::int64_t>(values.size())};
  }
  Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) override;

  Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
               std::span<const std::int32_t> ids, float* x) override {
    return gather({.table = table,
                   .dtype = dtype,
                   .ids = nullptr,
                   .rows = static_cast<std::int64_t>(ids.size()),
                   .dim = dim,
                   .vocab = vocab,
                   .out = x},
                  ids);
  }
  Status norm(const RmsNormArgs& args) override {
    return memory_->run(cuda::ResidualRmsNormArgs{args, nullptr});
  }
  Status product(const ProductArgs& args) override { return multiply(args, false); }
  Status add_product(const ProductArgs& args, float*) override { return multiply(args, true); }
  Status swiglu(const SwigluArgs& args) override { return memory_->run(args); }
  Status sum_columns(const ColumnSumsArgs& args) override { return memory_->run(args); }
  Status norm_heads(const HeadNormArgs& a) override {
    const std::int64_t q_dim = std::int64_t{a.num_heads} * a.head_dim,
                       kv_dim = std::int64_t{a.num_kv_heads} * a.head_dim;
    return memory_->run(cuda::QkvSplitArgs{.qkv = a.qkv,
                                           .bias = nullptr,
                                           .q_norm = a.q_norm,
                                           .k_norm = a.k_norm,
                                           .eps = a.eps,
                                           .rows = a.rows,
                                           .ldqkv = a.ld,
                                           .num_heads = a.num_heads,
                                           .num_kv_heads = a.num_kv_heads,
                                           .head_dim = a.head_dim,
                                           .q = a.qkv,
                                           .k = a.qkv + q_dim,
                                           .v = a.qkv + q_dim + kv_dim,
                                           .ldq = a.ld,
                                           .ldkv = a.ld});
  }
  Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                   std::int64_t dim, float* out) override {
    const std::int64_t n = rows.empty() ? 0 : *std::ranges::max_element(rows) + 1;
    return gather({.table = x,
                   .dtype = DType::kF32,
                   .ids = nullptr,
                   .rows = static_cast<std::int64_t>(rows.size()),
                   .dim = dim,
                   .vocab = n,
                   .out = out,
                   .ld = ldx},
                  rows);
  }
  Status rotate(const RopeTable& table, const RopeRotateArgs& args) override;
  Status write_rows(const RopeTable& table, const WriteRowsArgs& args) override;
  Status place(const RopeTable& table, const MutableKvView& dst,
               std::span<const StoredRows> rows) override;
  Status attend(const AttentionArgs& args) override;
  Status attend_each(const AttentionArgs& args,
                     std::span<const SequenceAttention> sequences) override;
  bool draws() const override { return true; }
  Status draw(const float* logits, std::int64_t vocab, std::span<const SampleRule> rules,
              std::int32_t* tokens) override;
  Status read_bytes(const void* x, std::int64_t bytes, void* out) override {
    if (bytes == 0) return {};
    QUIRE_RETURN_IF_ERROR(pinned_.reserve(bytes));
    QUIRE_RETURN_IF_ERROR(memory_->run(cuda::CopyArgs{pinned_.data(), x, bytes}));
    QUIRE_RETURN_IF_ERROR(memory_->synchronize());
    std::memcpy(out, pinned_.data(), static_cast<std::size_t>(bytes));
    return {};
  }
  Status meet_stored(const RopeTable& table, const MeetStoredArgs& args) override;
  Status score_blocks(const RopeTable& table, std::int32_t num_heads, std::int32_t num_kv_heads,
                      std::span<const ScoredBlocks> documents) override {
    return scoring_.run(table_of(table), num_heads, num_kv_heads, documents);
  }
  HookCompute* hooks() override { return &hooks_; }
  void begin_step(std::int64_t rows) override { memory_->begin_step(rows); }
  Status end_step() override { return memory_->end_step(); }

 private:
  /// Gathers the embeddings of `ids`; `args` has all members but the ids.
  Status gather(cuda::EmbeddingArgs args, std::span<const std::int32_t> ids) {
    if (ids.empty()) return {};
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(args.ids, stage_.put(ids));
    QUIRE_RETURN_IF_ERROR(stage_.send());
    return memory_->run(args);
  }
  Status multiply(const ProductArgs& a, bool accumulate);
  Status multiply_int8(const ProductArgs& a, const DeviceMatrix& w, bool accumulate);
  Status multiply_grouped(const ProductArgs& a, const DeviceMatrix& w, bool accumulate);
  struct Outputs {
    std::int64_t first, n;
  };
  /// Computes these outputs of a product without bias, one tile of weights at a time. expand(begin,
  /// n) writes a tile to expanded_ in bf16; `begin` counts from the first of these outputs.
  template <class Expand>
  Status by_tiles(const ProductArgs& a, const void* x, Outputs outputs, bool accumulate,
                  Expand expand);
  /// Returns the inputs of a product, contiguous and in `dtype`.
  Result<const void*> inputs(const ProductArgs& a, DType dtype) {
    const std::int64_t k = a.weights->k();
    if (dtype == DType::kF32 && a.ldx == k) return static_cast<const void*>(a.x);
    QUIRE_RETURN_IF_ERROR(
        rounded_.reserve(a.rows * k * static_cast<std::int64_t>(dtype_bytes(dtype))));
    QUIRE_RETURN_IF_ERROR(
        memory_->run(cuda::ConvertArgs{a.x, a.rows, k, a.ldx, dtype, rounded_.data()}));
    return static_cast<const void*>(rounded_.data());
  }
  /// Target holds the destination of rows: pages, positions and rows as kernels read them. Only the
  /// pages that are written to are uploaded.
  struct Target {
    MutableKvView dst;
    const std::int32_t *positions, *dst_rows;
  };
  /// Uploads a target, between stage_.begin() and stage_.send().
  Result<Target> target(const MutableKvView& dst, std::span<const std::int32_t> positions,
                        std::span<const std::int32_t> dst_rows);
  /// Places raw rows on the device in dst_rows of dst.
  Status place_rows(const RopeTable& table, const RawKvView& raw, const MutableKvView& dst,
                    std::span<const std::int32_t> positions,
                    std::span<const std::int32_t> dst_rows);
  Status few_rows(const AttentionArgs& args, std::int64_t first, std::int64_t rows);
  cuda::DeviceRopeTable table_of(const RopeTable& table) {
    std::lock_guard lock(state_->mu);
    return state_->tables.at(&table);
  }

  const std::shared_ptr<DeviceState> state_;
  const std::string name_;
  const std::shared_ptr<DeviceMemory> memory_;
  ArgumentStage stage_;
  // The buffers hold inputs of products, gathered K and V, packed K and V, a tile of weights,
  // partial attention, and values being read.
  DeviceBuffer rounded_, rows_, raw_, expanded_, scratch_, pinned_;
  StoredRowsFeed feed_;
  BlockScoring scoring_;
  DeviceHooks hooks_;
};

Result<std::shared_ptr<const void>> DeviceCompute::register_rope(const RopeTable& table) {
  const RopeConfig& c = table.config();
  const std::size_t n = static_cast<std::size_t>(table.max_positions()) *
                        static_cast<std::size_t>(c.rotary_dim / 2);
  using Halves = std::pair<std::shared_ptr<const void>, std::shared_ptr<const void>>;
  Halves halves;
  QUIRE_ASSIGN_OR_RETURN(halves.first,
                         quire::upload(memory_, std::as_bytes(std::span(table.cos_row(0), n))));
  QUIRE_ASSIGN_OR_RETURN(halves.second,
                         quire::upload(memory_, std::as_bytes(std::span(table.sin_row(0), n))));
  const auto* key = &table;
  {
    std::lock_guard lock(state_->mu);
    state_->tables[key] = {static_cast<const float*>(halves.first.get()),
                           static_cast<const float*>(halves.second.get()),
                           table.max_positions(),
                           c.head_dim,
                           c.rotary_dim,
                           c.interleaved};
  }
  return std::shared_ptr<const void>(new Halves(std::move(halves)),
                                     [state = state_, key](const void* p) {
                                       {
                                         std::lock_guard lock(state->mu);
                                         state->tables.erase(key);
                                       }
                                       delete static_cast<const Halves*>(p);
                                     });
}

Status DeviceCompute::multiply(const ProductArgs& a, bool accumulate) {
  if (a.rows == 0) return {};
  const auto& w = static_cast<const DeviceMatrix&>(*a.weights);
  if (!w.grouped().empty()) return multiply_grouped(a, w, accumulate);
  if (w.dtype() == DType::kI8) return multiply_int8(a, w, accumulate);
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a, w.dtype()));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::MatmulArgs{.x = x,
                                                      .weight = w.data(),
                                                      .dtype = w.dtype(),
                                                      .rows = a.rows,
                                                      .n = w.n(),
                                                      .k = w.k(),
                                                      .y = a.y,
                                                      .ldy = a.ldy,
                                                      .accumulate = accumulate}));
  return a.bias == nullptr ? Status()
                           : memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

Status DeviceCompute::multiply_int8(const ProductArgs& a, const DeviceMatrix& w, bool accumulate) {
  const auto* codes = static_cast<const std::int8_t*>(w.data());
  if (a.rows <= kFewRows) {
    QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a, DType::kF32));
    return memory_->run(cuda::Int8GemvArgs{.x = static_cast<const float*>(x),
                                           .weight = codes,
                                           .scale = w.scales(),
                                           .bias = a.bias,
                                           .rows = a.rows,
                                           .n = w.n(),
                                           .k = w.k(),
                                           .warps = 0,
                                           .y = a.y,
                                           .ldy = a.ldy,
                                           .accumulate = accumulate});
  }
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a, DType::kBF16));
  QUIRE_RETURN_IF_ERROR(
      by_tiles(a, x, {0, w.n()}, accumulate, [&](std::int64_t first, std::int64_t n) {
        const float* scales = w.scales() + first * (w.k() / cuda::kGemvGroup);
        return memory_->run(
            cuda::Int8ExpandArgs{codes + first * w.k(), scales, n, w.k(), expanded_.data()});
      }));
  return a.bias == nullptr ? Status()
                           : memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

Status DeviceCompute::multiply_grouped(const ProductArgs& a, const DeviceMatrix& w,
                                       bool accumulate) {
  const bool few = a.rows <= kFewRows;
  QUIRE_ASSIGN_OR_RETURN(const void* x, inputs(a, few ? DType::kF32 : DType::kBF16));
  std::int64_t first = 0;
  for (const cuda::GroupedWeights& part : w.grouped()) {
    if (few) {
      QUIRE_RETURN_IF_ERROR(
          memory_->run(cuda::GroupedGemvArgs{.x = static_cast<const float*>(x),
                                             .weight = part,
                                             .bias = a.bias == nullptr ? nullptr : a.bias + first,
                                             .rows = a.rows,
                                             .warps = 0,
                                             .y = a.y + first,
                                             .ldy = a.ldy,
                                             .accumulate = accumulate}));
    } else {
      const auto expand = [&](std::int64_t begin, std::int64_t n) {
        return memory_->run(cuda::GroupedExpandArgs{rows_of(part, begin, n), expanded_.data()});
      };
      QUIRE_RETURN_IF_ERROR(by_tiles(a, x, {first, part.n}, accumulate, expand));
    }
    first += part.n;
  }
  if (few || a.bias == nullptr) return {};
  return memory_->run(cuda::AddBiasArgs{a.y, a.bias, a.rows, w.n(), a.ldy});
}

template <class Expand>
Status DeviceCompute::by_tiles(const ProductArgs& a, const void* x, Outputs outputs,
                               bool accumulate, Expand expand) {
  const std::int64_t k = a.weights->k(), bytes = k * 2;
  const std::int64_t tile = std::max<std::int64_t>(64, kTileBytes / bytes / 64 * 64);
  QUIRE_RETURN_IF_ERROR(expanded_.reserve(std::min(tile, outputs.n) * bytes));
  for (std::int64_t begin = 0; begin < outputs.n; begin += tile) {
    const std::int64_t n = std::min(tile, outputs.n - begin);
    QUIRE_RETURN_IF_ERROR(expand(begin, n));
    QUIRE_RETURN_IF_ERROR(memory_->run(cuda::MatmulArgs{.x = x,
                                                        .weight = expanded_.data(),
                                                        .dtype = DType::kBF16,
                                                        .rows = a.rows,
                                                        .n = n,
                                                        .k = k,
                                                        .y = a.y + outputs.first + begin,
                                                        .ldy = a.ldy,
                                                        .accumulate = accumulate}));
  }
  return {};
}

Status DeviceCompute::rotate(const RopeTable& table, const RopeRotateArgs& args) {
  if (args.rows == 0) return {};
  RopeRotateArgs rows = args;
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(
      rows.positions, stage_.put(std::span(args.positions, static_cast<std::size_t>(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(cuda::RotateRowsArgs{table_of(table), rows});
}

Status DeviceCompute::write_rows(const RopeTable& table, const WriteRowsArgs& a) {
  const auto n = static_cast<std::int64_t>(a.from.size());
  if (n == 0) return {};
  const std::int64_t kv_dim = std::int64_t{a.dst.num_kv_heads} * a.dst.head_dim,
                     size = static_cast<std::int64_t>(dtype_bytes(a.raw_dtype)),
                     row = a.dst.head_dim * size;
  QUIRE_RETURN_IF_ERROR(raw_.reserve(n * 2 * kv_dim * size));
  const float *k = a.k, *v = a.v;
  std::int64_t ld = a.ld;
  if (a.from.front() != 0 || a.from.back() + 1 != n) {
    QUIRE_RETURN_IF_ERROR(rows_.reserve(n * 2 * kv_dim * static_cast<std::int64_t>(sizeof(float))));
    auto* gathered = reinterpret_cast<float*>(rows_.data());
    QUIRE_RETURN_IF_ERROR(take_rows(a.k, a.ld, a.from, kv_dim, gathered));
    QUIRE_RETURN_IF_ERROR(take_rows(a.v, a.ld, a.from, kv_dim, gathered + n * kv_dim));
    k = gathered;
    v = gathered + n * kv_dim;
    ld = kv_dim;
  }
  QUIRE_RETURN_IF_ERROR(memory_->run(KvPackArgs{.k = k,
                                                .v = v,
                                                .rows = n,
                                                .ldk = ld,
                                                .ldv = ld,
                                                .num_kv_heads = a.dst.num_kv_heads,
                                                .head_dim = a.dst.head_dim,
                                                .dtype = a.raw_dtype,
                                                .out = raw_.data()}));

  return place_rows(table,
                    {.data = raw_.data(),
                     .num_rows = n,
                     .dtype = a.raw_dtype,
                     .head_stride = 2 * n * row,
                     .kv_stride = n * row,
                     .row_stride = row},
                    a.dst, a.positions, a.dst_rows);
}

Result<DeviceCompute::Target> DeviceCompute::target(const MutableKvView& dst,
                                                    std::span<const std::int32_t> positions,
                                                    std::span<const std::int32_t> dst_rows) {
  const auto [least, most] = std::ranges::minmax(dst_rows);
  const std::int32_t first_page = least / kPageTokens, last_page = most / kPageTokens;
  std::vector<std::int32_t> rows(dst_rows.begin(), dst_rows.end());
  for (std::int32_t& r : rows) r -= first_page * kPageTokens;
  Target out{dst, nullptr, nullptr};
  out.dst.num_rows = dst.num_rows - first_page * kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(out.dst.pages, stage_.put(std::span<void* const>(
                                            dst.pages + first_page,
                                            static_cast<std::size_t>(last_page - first_page + 1))));
  QUIRE_ASSIGN_OR_RETURN(out.positions, stage_.put(positions));
  QUIRE_ASSIGN_OR_RETURN(out.dst_rows, stage_.put(std::span<const std::int32_t>(rows)));
  return out;
}

Status DeviceCompute::place_rows(const RopeTable& table, const RawKvView& raw,
                                 const MutableKvView& dst, std::span<const std::int32_t> positions,
                                 std::span<const std::int32_t> dst_rows) {
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(const Target to, target(dst, positions, dst_rows));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(cuda::PlaceRowsArgs{table_of(table),
                                          {.src = raw,
                                           .dst = to.dst,
                                           .positions = to.positions,
                                           .dst_rows = to.dst_rows,
                                           .first_dst_row = 0}});
}

Status DeviceCompute::place(const RopeTable& table, const MutableKvView& dst,
                            std::span<const StoredRows> rows) {
  std::vector<std::int32_t> positions, dst_rows;
  join(rows, positions, dst_rows);
  if (positions.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const RawKvView raw, feed_.bring(rows, dst.num_kv_heads, dst.head_dim));
  const Status placed = place_rows(table, raw, dst, positions, dst_rows);
  QUIRE_RETURN_IF_ERROR(feed_.placed());  // also after an error: the slot has been used
  return placed;
}

Status DeviceCompute::meet_stored(const RopeTable& table, const MeetStoredArgs& a) {
  std::vector<std::int32_t> positions, dst_rows;
  join(a.stored, positions, dst_rows);
  if (positions.empty()) return {};
  QUIRE_ASSIGN_OR_RETURN(const RawKvView raw,
                         feed_.bring(a.stored, a.dst.num_kv_heads, a.dst.head_dim));
  const auto enqueue = [&]() -> Status {
    std::vector<const void*> stored(positions.size());
    for (std::size_t i = 0; i < stored.size(); ++i)
      stored[i] = static_cast<const std::byte*>(raw.data) +
                  static_cast<std::int64_t>(i) * raw.row_stride;
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(const Target to, target(a.dst, positions, dst_rows));
    QUIRE_ASSIGN_OR_RETURN(const void* const* each,
                           stage_.put(std::span<const void* const>(stored)));
    QUIRE_RETURN_IF_ERROR(stage_.send());
    return memory_->run(cuda::PlaceRecomputedArgs{table_of(table),
                                                  {.k = a.k,
                                                   .v = a.v,
                                                   .rows = raw.num_rows,
                                                   .ld = a.ld,
                                                   .stored = each,
                                                   .stored_head_stride = raw.head_stride,
                                                   .stored_kv_stride = raw.kv_stride,
                                                   .raw_dtype = raw.dtype,
                                                   .positions = to.positions,
                                                   .dst_rows = to.dst_rows,
                                                   .dst = to.dst}});
  };
  const Status met = enqueue();
  QUIRE_RETURN_IF_ERROR(feed_.placed());
  return met;
}

Status DeviceCompute::draw(const float* logits, std::int64_t vocab,
                           std::span<const SampleRule> rules, std::int32_t* tokens) {
  const auto rows = static_cast<std::int64_t>(rules.size());
  if (rows == 0) return {};
  if (std::ranges::all_of(rules, [](const SampleRule& r) { return !(r.temperature > 0); }))
    return memory_->run(cuda::ArgmaxArgs{logits, rows, vocab, tokens});
  std::vector<float> temperature, top_p, min_p;
  std::vector<double> uniform;
  std::vector<std::int32_t> top_k;
  for (const SampleRule& r : rules) {
    temperature.push_back(r.temperature);
    top_k.push_back(r.top_k);
    top_p.push_back(r.top_p);
    min_p.push_back(r.min_p);
    uniform.push_back(r.uniform);
  }
  cuda::SampleArgs args{.logits = logits,
                        .rows = rows,
                        .n = vocab,
                        .temperature = nullptr,
                        .top_k = nullptr,
                        .top_p = nullptr,
                        .min_p = nullptr,
                        .uniform = nullptr,
                        .out = tokens};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  QUIRE_ASSIGN_OR_RETURN(args.temperature, stage_.put(std::span<const float>(temperature)));
  QUIRE_ASSIGN_OR_RETURN(args.top_k, stage_.put(std::span<const std::int32_t>(top_k)));
  QUIRE_ASSIGN_OR_RETURN(args.top_p, stage_.put(std::span<const float>(top_p)));
  QUIRE_ASSIGN_OR_RETURN(args.min_p, stage_.put(std::span<const float>(min_p)));
  QUIRE_ASSIGN_OR_RETURN(args.uniform, stage_.put(std::span<const double>(uniform)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  return memory_->run(args);
}

Status DeviceCompute::attend(const AttentionArgs& args) {
  if (args.rows == 0) return {};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  AttentionArgs a = args;
  QUIRE_ASSIGN_OR_RETURN(a.kv, staged_view(stage_, args.kv));
  QUIRE_ASSIGN_OR_RETURN(
      a.query_positions,
      stage_.put(std::span(args.query_positions, static_cast<std::size_t>(args.rows))));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  if (args.kv.dtype != DType::kF32) return memory_->run(cuda::PrefillAttentionArgs{a});
  // f32 has no tensor-core kernel: process as many rows at once as their partial results have room.
  cuda::DecodeAttentionArgs one{
      .attention = a, .lists = nullptr, .longest_list = 0, .scratch = nullptr};
  one.attention.rows = 1;
  const std::int64_t per_row = std::max<std::int64_t>(1, decode_attention_scratch_bytes(one));
  const std::int64_t step = std::clamp<std::int64_t>(kScratchBytes / per_row, 1, 4096);
  QUIRE_RETURN_IF_ERROR(scratch_.reserve(std::min(step, a.rows) * per_row));
  for (std::int64_t first = 0; first < a.rows; first += step) {
    cuda::DecodeAttentionArgs part{.attention = a,
                                   .lists = nullptr,
                                   .longest_list = 0,
                                   .scratch = reinterpret_cast<float*>(scratch_.data())};
    part.attention.q += first * a.ldq;
    part.attention.out += first * a.ldo;
    part.attention.query_positions += first;
    if (a.lse != nullptr) part.attention.lse += first * a.num_heads;
    part.attention.rows = std::min(step, a.rows - first);
    QUIRE_RETURN_IF_ERROR(memory_->run(part));
  }
  return {};
}

Status DeviceCompute::attend_each(const AttentionArgs& args,
                                  std::span<const SequenceAttention> sequences) {
  if (args.rows == 0) return {};
  QUIRE_RETURN_IF_ERROR(stage_.begin());
  std::vector<cuda::SequenceKv> each;
  std::vector<std::int32_t> positions;
  std::int64_t longest = 0;
  for (const SequenceAttention& s : sequences) {
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, staged_view(stage_, s.kv));
    cuda::SequenceKv one{kv.pages, kv.positions, kv.num_rows, nullptr};
    if (s.lists_on_device != nullptr) {
      longest = std::max(longest, s.longest_list);
      one.lists = s.lists_on_device;
    } else if (s.lists == nullptr) {
      longest = std::max(longest, kv.num_rows);
    } else {
      std::vector<RowList> lists(s.lists, s.lists + kv.num_kv_heads);
      for (RowList& list : lists) {
        longest = std::max(longest, list.length);
        QUIRE_ASSIGN_OR_RETURN(
            list.rows, stage_.put(std::span(list.rows, static_cast<std::size_t>(list.length)),
                                  kRowsRoom * static_cast<std::int64_t>(sizeof(std::int32_t))));
      }
      QUIRE_ASSIGN_OR_RETURN(one.lists, stage_.put(std::span<const RowList>(lists)));
    }
    each.push_back(one);
    positions.push_back(s.position);
  }
  longest = (longest + kRowsRoom - 1) / kRowsRoom *
            kRowsRoom;  // so that equal numbers of chunks repeat
  cuda::DecodeAttentionArgs decode{
      .attention = args, .lists = nullptr, .longest_list = longest, .scratch = nullptr};
  decode.attention.kv = sequences.front().kv;  // kernels use only its shape
  decode.attention.kv.pages = each.front().pages;
  decode.attention.kv.positions = each.front().positions;
  decode.attention.kv.num_rows = longest;
  decode.attention.kv.sorted = false;
  decode.attention.lse = nullptr;
  QUIRE_ASSIGN_OR_RETURN(decode.sequences, stage_.put(std::span<const cuda::SequenceKv>(each)));
  QUIRE_ASSIGN_OR_RETURN(decode.attention.query_positions,
                         stage_.put(std::span<const std::int32_t>(positions)));
  QUIRE_RETURN_IF_ERROR(stage_.send());
  QUIRE_RETURN_IF_ERROR(scratch_.reserve(decode_attention_scratch_bytes(decode)));
  decode.scratch = reinterpret_cast<float*>(scratch_.data());
  return memory_->run(decode);
}

}  // namespace

std::shared_ptr<Compute> make_device_compute(std::shared_ptr<cuda::DeviceOps> ops,
                                             std::string name) {
  return std::make_shared<DeviceCompute>(std::make_shared<DeviceState>(std::move(ops)),
                                         std::move(name));
}

}  // namespace quire
