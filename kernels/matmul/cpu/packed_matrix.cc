#include "kernels/matmul/cpu/packed_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/matmul/cpu/matmul_kernels.h"
#include "kernels/matmul/cpu/panel_matrix.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kBlockSteps = 64;  // 2048 inputs
// 1024 inputs: half a megabyte of rows next to the panel
constexpr std::int64_t kVectorBlockSteps = 32;
// With less work, waking a second thread costs more than it saves
constexpr double kLeastWorkF32 = 4e6, kLeastWorkBf16 = 1e7;

/// Stores panels of 32 outputs one after the other.
class EvenPanels : public PanelMatrix {
 public:
  EvenPanels(std::int64_t n, std::int64_t k) : PanelMatrix(n, k, ceil_div(n, kPanelColumns)) {}

 protected:
  PanelOutput output(std::int64_t panel, std::int64_t row, std::int64_t rows, const float* bias,
                     float* padded_bias, float* y, std::int64_t ldy, bool first) const {
    const std::int64_t column = panel * kPanelColumns;
    return PanelMatrix::output(column, std::min(kPanelColumns, n_ - column), row, rows, bias,
                               padded_bias, y, ldy, first);
  }
};

class F32Matrix final : public EvenPanels {
 public:
  F32Matrix(const StackedRows& rows, std::int64_t n)
      : EvenPanels(n, rows.k), data_(sizeof(float) * panels_ * kPanelColumns * k_) {
    parallel_for(panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(k_));
      for (std::int64_t c = begin * kPanelColumns; c < end * kPanelColumns; ++c) {
        float* to = data_.as<float>() + c / kPanelColumns * kPanelColumns * k_ + c % kPanelColumns;
        std::fill(row.begin(), row.end(), 0.0f);
        if (c < n_) rows.read(c, row.data());
        for (std::int64_t i = 0; i < k_; ++i) to[i * kPanelColumns] = row[i];
      }
    });
  }
  WeightFormat format() const override { return WeightFormat::kF32; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(data_.size_bytes()); }

 protected:
  void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
           std::int64_t ldy) const override {
    over_panels(m, kLeastWorkF32, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t cut = m <= 8 ? k_ : 1024;
      alignas(64) float padded_bias[kPanelColumns];
      for (std::int64_t i = 0; i < k_; i += cut) {
        for (std::int64_t p = begin; p < end; ++p) {
          const float* panel = data_.as<const float>() + (p * k_ + i) * kPanelColumns;
          multiply_panel_f32(x + i, ldx, panel, std::min(cut, k_ - i),
                             output(p, 0, m, bias, padded_bias, y, ldy, i == 0));
        }
      }
    });
  }

 private:
  WeightBuffer data_;
};

/// Implements bf16 arithmetic: inputs are rounded once, and each format provides panels of bf16.
class Bf16Arithmetic : public EvenPanels {
 public:
  Bf16Arithmetic(std::int64_t n, std::int64_t k, std::int64_t steps)
      : EvenPanels(n, k), steps_(steps) {}

 protected:
  /// Returns steps [s, s + count) of a panel, in memory or expanded into `scratch` (kBlockSteps *
  /// kStepElements elements).
  virtual const std::uint16_t* panel(std::int64_t p, std::int64_t s, std::int64_t count,
                                     std::uint16_t* scratch) const = 0;
  struct Range {
    const void* at;
    std::int64_t bytes;
  };
  /// Returns the memory to prefetch before panel p's steps [s, s + count).
  virtual Range upcoming(std::int64_t p, std::int64_t s, std::int64_t count) const = 0;
  /// Multiplies at most kFewRows rows with AMX, reading the weights once.
  virtual void multiply_few(const std::uint16_t* tiles, std::int64_t p,
                            const PanelOutput& out) const = 0;
  /// Multiplies steps [s, s + count) with AVX512-BF16; tiles begin at s.
  virtual void multiply_dot(const std::uint16_t* tiles, std::int64_t p, std::int64_t s,
                            std::int64_t count, const PanelOutput& out) const = 0;

  void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
           std::int64_t ldy) const override {
    if (isa() == Isa::kAmx)
      run_amx(x, m, ldx, bias, y, ldy);
    else if (isa() == Isa::kAvx512Bf16)
      run_dot(x, m, ldx, bias, y, ldy);
    else
      run_simd(x, m, ldx, bias, y, ldy);
  }

  std::uint16_t* pack_rows(const float* x, std::int64_t m, std::int64_t ldx,
                           TileRows tile_rows) const {
    const std::int64_t row_tiles = ceil_div(m, 16);
    auto* tiles = thread_scratch<std::uint16_t>(ScratchSlot::kMatmulInput,
                                                row_tiles * steps_ * kTileElements);
    parallel_for(row_tiles, 1 + 65536 / (16 * k_), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        pack_row_tiles(x + t * 16 * ldx, ldx, std::min<std::int64_t>(16, m - t * 16), k_, steps_,
                       tile_rows, tiles + t * steps_ * kTileElements);
      }
    });
    return tiles;
  }

  void run_dot(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
               std::int64_t ldy) const {
    const std::uint16_t* tiles = pack_rows(x, m, ldx, TileRows::kExact);
    over_blocks(m, bias, y, ldy,
                [&](std::int64_t p, std::int64_t s, std::int64_t count, std::int64_t row,
                    const PanelOutput& out) {
                  multiply_dot(tiles + (row / 16 * steps_ + s) * kTileElements, p, s, count, out);
                });
  }

  /// Calls fn(panel, step, number of steps, first row, output) over panels in threads. A piece of a
  /// panel serves a block of rows while their inputs are in L2.
  template <class F>
  void over_blocks(std::int64_t m, const float* bias, float* y, std::int64_t ldy, F&& fn) const {
    // With few rows each panel is read whole, in memory order.
    const std::int64_t cut = m <= kFewRows ? steps_ : kVectorBlockSteps;
    over_panels(m, kLeastWorkBf16, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float padded_bias[kPanelColumns];
      for (std::int64_t row = 0; row < m; row += kBlockRows) {
        for (std::int64_t s = 0; s < steps_; s += cut) {
          for (std::int64_t p = begin; p < end; ++p) {
            const PanelOutput out = output(p, row, std::min(kBlockRows, m - row), bias, padded_bias,
                                           y, ldy, s == 0);
            fn(p, s, std::min(cut, steps_ - s), row, out);
          }
        }
      }
    });
  }

  void run_amx(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
               std::int64_t ldy) const {
    const std::uint16_t* tiles = pack_rows(x, m, ldx,
                                           m <= kFewRows ? TileRows::kExact : TileRows::kSixteen);
    over_panels(m, kLeastWorkBf16, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float padded_bias[kPanelColumns];
      if (m <= kFewRows) {
        const TileScope tiles_on(m);
        for (std::int64_t p = begin; p < end; ++p)
          multiply_few(tiles, p, output(p, 0, m, bias, padded_bias, y, ldy, true));
        return;
      }
      const TileScope tiles_on;
      auto* scratch = thread_scratch<std::uint16_t>(ScratchSlot::kMatmulPanel,
                                                    kBlockSteps * kStepElements);
      for (std::int64_t row = 0; row < m; row += kBlockRows) {
        for (std::int64_t s = 0; s < steps_; s += kBlockSteps) {
          const std::int64_t count = std::min(kBlockSteps, steps_ - s);
          for (std::int64_t p = begin; p < end; ++p) {
            const std::uint16_t* weights = panel(p, s, count, scratch);
            const PanelOutput out = output(p, row, std::min(kBlockRows, m - row), bias, padded_bias,
                                           y, ldy, s == 0);
            const Range next = p + 1 < end ? upcoming(p + 1, s, count) : Range{nullptr, 0};
            amx_multiply_panel(tiles + (row / 16 * steps_ + s) * kTileElements, steps_, weights,
                               count, out, TileRows::kSixteen, next.at, next.bytes);
          }
        }
      }
    });
  }

  void run_simd(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                std::int64_t ldy) const {
    const std::int64_t padded = steps_ * kStepInputs;
    auto* inputs = thread_scratch<float>(ScratchSlot::kMatmulInput, m * padded);
    parallel_for(m, 1 + 65536 / k_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        round_inputs(x + r * ldx, k_, padded, inputs + r * padded);
    });
    const std::int64_t cut = m <= 8 ? kBlockSteps : 16;
    over_panels(m, kLeastWorkBf16, [&](std::int64_t begin, std::int64_t end) {
      auto* scratch = thread_scratch<std::uint16_t>(ScratchSlot::kMatmulPanel,
                                                    kBlockSteps * kStepElements);
      alignas(64) float padded_bias[kPanelColumns];
      for (std::int64_t s = 0; s < steps_; s += cut) {
        const std::int64_t count = std::min(cut, steps_ - s);
        for (std::int64_t p = begin; p < end; ++p) {
          const PanelOutput out = output(p, 0, m, bias, padded_bias, y, ldy, s == 0);
          multiply_panel_bf16(inputs + s * kStepInputs, padded, panel(p, s, count, scratch), count,
                              out);
        }
      }
    });
  }

  std::int64_t steps_;
};

class Bf16Matrix final : public Bf16Arithmetic {
 public:
  Bf16Matrix(const StackedRows& rows, std::int64_t n)
      : Bf16Arithmetic(n, rows.k, ceil_div(rows.k, kStepInputs)),
        data_(sizeof(std::uint16_t) * panels_ * steps_ * kStepElements) {
    parallel_for(panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(steps_ * kStepInputs));
      for (std::int64_t c = begin * kPanelColumns; c < end * kPanelColumns; ++c) {
        std::fill(row.begin(), row.end(), 0.0f);
        if (c < n_) rows.read(c, row.data());
        const std::int64_t column = c % kPanelColumns;
        std::uint16_t* to = data_.as<std::uint16_t>() + c / kPanelColumns * steps_ * kStepElements +
                            column / 16 * kTileElements + column % 16 * 2;
        for (std::int64_t i = 0; i < steps_ * kStepInputs; ++i) {
          to[i / kStepInputs * kStepElements + i % kStepInputs / 2 * 32 + i % 2] = f32_to_bf16(
              row[i]);
        }
      }
    });
  }
  WeightFormat format() const override { return WeightFormat::kBF16; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(data_.size_bytes()); }

 protected:
  const std::uint16_t* panel(std::int64_t p, std::int64_t s, std::int64_t,
                             std::uint16_t*) const override {
    return at(p * steps_ + s);
  }
  Range upcoming(std::int64_t p, std::int64_t s, std::int64_t count) const override {
    return {at(p * steps_ + s), 2 * kStepElements * count};
  }
  void multiply_few(const std::uint16_t* tiles, std::int64_t p,
                    const PanelOutput& out) const override {
    // All panels are one stream through memory; the prefetch stays a fixed distance ahead of the
    // loads, across panels too.
    constexpr std::int64_t kAheadSteps = 2;
    const std::int64_t ahead = p * steps_ + kAheadSteps, last = panels_ * steps_;
    const std::int64_t count = std::clamp<std::int64_t>(last - ahead, 0, steps_);
    amx_multiply_panel(tiles, steps_, at(p * steps_), steps_, out, TileRows::kExact,
                       count > 0 ? at(ahead) : nullptr, 2 * kStepElements * count);
  }
  void multiply_dot(const std::uint16_t* tiles, std::int64_t p, std::int64_t s, std::int64_t count,
                    const PanelOutput& out) const override {
    dot_multiply_panel(tiles, steps_, at(p * steps_ + s), count, out);
  }

 private:
  const std::uint16_t* at(std::int64_t step) const {
    return data_.as<const std::uint16_t>() + step * kStepElements;
  }
  WeightBuffer data_;
};

/// Keeps inputs as bf16, or (`bytes`) rounds them to int8 where the CPU multiplies bytes.
class Int8Matrix final : public Bf16Arithmetic {
 public:
  Int8Matrix(const StackedRows& rows, std::int64_t n, bool bytes, bool& finite)
      : Bf16Arithmetic(n, rows.k, 2 * ceil_div(rows.k, kInt8Group)),
        format_(bytes ? WeightFormat::kW8A8 : WeightFormat::kInt8),
        multiplies_bytes_(bytes && isa() == Isa::kAvx512Bf16),
        data_(panels_ * steps_ / 2 * kInt8GroupBytes) {
    std::atomic<bool> all_finite{true};
    parallel_for(panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> row(static_cast<std::size_t>(steps_ * kStepInputs));
      for (std::int64_t c = begin * kPanelColumns; c < end * kPanelColumns; ++c) {
        std::fill(row.begin(), row.end(), 0.0f);
        if (c < n_) rows.read(c, row.data());
        for (std::int64_t group = 0; group < steps_ / 2; ++group) {
          if (!quantise(row.data() + group * kInt8Group, c, group)) all_finite = false;
        }
      }
    });
    finite = all_finite;
  }
  WeightFormat format() const override { return format_; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(data_.size_bytes()); }

 protected:
  const std::uint16_t* panel(std::int64_t p, std::int64_t s, std::int64_t count,
                             std::uint16_t* scratch) const override {
    (isa() == Isa::kAmx ? amx_dequantise_panel : dequantise_panel)(record(p, s / 2), count / 2,
                                                                   scratch);
    return scratch;
  }
  Range upcoming(std::int64_t p, std::int64_t s, std::int64_t count) const override {
    return {record(p, s / 2), count / 2 * kInt8GroupBytes};
  }
  void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
           std::int64_t ldy) const override {
    if (!multiplies_bytes_) return Bf16Arithmetic::run(x, m, ldx, bias, y, ldy);
    const Int8Rows rows = quantised(x, m, ldx);
    over_blocks(m, bias, y, ldy,
                [&](std::int64_t p, std::int64_t s, std::int64_t count, std::int64_t row,
                    const PanelOutput& out) {
                  vnni_multiply_panel(rows, row, s / 2, record(p, s / 2), count / 2, out);
                });
  }
  void multiply_few(const std::uint16_t* tiles, std::int64_t p,
                    const PanelOutput& out) const override {
    amx_multiply_int8(tiles, steps_, record(p, 0), steps_ / 2, out);
  }
  void multiply_dot(const std::uint16_t* tiles, std::int64_t p, std::int64_t s, std::int64_t count,
                    const PanelOutput& out) const override {
    dot_multiply_int8(tiles, steps_, record(p, s / 2), count / 2, out);
  }

 private:
  std::byte* record(std::int64_t p, std::int64_t group) const {
    return data_.as<std::byte>() + (p * steps_ / 2 + group) * kInt8GroupBytes;
  }

  /// Rounds the inputs into thread-local scratch.
  Int8Rows quantised(const float* x, std::int64_t m, std::int64_t ldx) const {
    const std::int64_t groups = steps_ / 2;
    auto* scratch = thread_scratch<std::byte>(ScratchSlot::kMatmulInput,
                                              m * groups * (kInt8Group + 8));
    auto* scales = reinterpret_cast<float*>(scratch + m * groups * kInt8Group);
    const Int8Rows rows{m, groups, reinterpret_cast<std::int8_t*>(scratch), scales,
                        reinterpret_cast<std::int32_t*>(scales + m * groups)};
    parallel_for(m, 1 + 65536 / k_, [&](std::int64_t begin, std::int64_t end) {
      quantise_rows(x, ldx, k_, begin, end, rows);
    });
    return rows;
  }

  /// Packs one group of one column. Returns false if a weight is not finite.
  bool quantise(const float* w, std::int64_t c, std::int64_t group) {
    float largest = 0;
    bool finite = true;
    for (std::int64_t i = 0; i < kInt8Group; ++i) {
      finite = finite && std::isfinite(w[i]);
      largest = std::max(largest, std::fabs(w[i]));
    }
    const float scale = largest / 127.0f, inverse = finite && scale > 0 ? 1.0f / scale : 0.0f;
    const std::int64_t p = c / kPanelColumns, column = c % kPanelColumns;
    reinterpret_cast<float*>(record(p, group))[column] = scale;
    auto* q = reinterpret_cast<std::uint8_t*>(record(p, group) + kInt8ScaleBytes);
    for (std::int64_t i = 0; i < kInt8Group; ++i) {
      const float rounded = finite && std::isfinite(inverse)
                                ? std::clamp(std::nearbyint(w[i] * inverse), -127.0f, 127.0f)
                                : 0.0f;
      q[offset(column, i)] = encode(static_cast<int>(rounded));
    }
    return finite;
  }

  // Returns where an instruction set expects a group's number (matmul_kernels.h).
  std::int64_t offset(std::int64_t column, std::int64_t input) const {
    if (multiplies_bytes_) return vnni_offset(column, input);
    const std::int64_t step = input / kStepInputs * kStepElements, i = input % kStepInputs;
    if (isa() == Isa::kAvx512Bf16) return step + dot_int8_offset(column, i);
    return step + column / 16 * kTileElements + i / 2 * 32 +
           (isa() == Isa::kAmx ? column % 16 * 2 + i % 2 : i % 2 * 16 + column % 16);
  }
  std::uint8_t encode(int q) const {
    if (multiplies_bytes_) return static_cast<std::uint8_t>(q + kInt8Zero);
    if (isa() != Isa::kAvx512Bf16) return static_cast<std::uint8_t>(static_cast<std::int8_t>(q));
    return static_cast<std::uint8_t>(q < 0 ? 0x80 - q : q);
  }

  const WeightFormat format_;
  const bool multiplies_bytes_;
  WeightBuffer data_;
};

}  // namespace

Result<std::unique_ptr<PackedMatrix>> pack_f32(std::span<const WeightPart> parts, std::int64_t n,
                                               std::int64_t k, DType dtype) {
  return std::unique_ptr<PackedMatrix>(
      std::make_unique<F32Matrix>(StackedRows{parts, k, dtype}, n));
}

Result<std::unique_ptr<PackedMatrix>> pack_bf16(std::span<const WeightPart> parts, std::int64_t n,
                                                std::int64_t k, DType dtype) {
  return std::unique_ptr<PackedMatrix>(
      std::make_unique<Bf16Matrix>(StackedRows{parts, k, dtype}, n));
}

Result<std::unique_ptr<PackedMatrix>> pack_int8(std::span<const WeightPart> parts, std::int64_t n,
                                                std::int64_t k, DType dtype, bool bytes) {
  bool finite = true;
  std::unique_ptr<PackedMatrix> matrix = std::make_unique<Int8Matrix>(StackedRows{parts, k, dtype},
                                                                      n, bytes, finite);
  if (!finite)
    return Status::invalid("weights",
                           "a weight is NaN or infinite and cannot be quantised to int8; use bf16");
  return matrix;
}

}  // namespace quire::cpu
