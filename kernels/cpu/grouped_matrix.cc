// Weights in groups of 32: packed from values or blocks, multiplied with inputs rounded to int8.
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/grouped_kernels.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/panel_matrix.h"
#include "kernels/cpu/scratch.h"
#include "kernels/quant_blocks.h"
#include "kernels/round_weights.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kBlockGroups = 32;  // 1,024 inputs of a block of rows stay in L2
constexpr double kLeastWork = 1e7;         // below this, waking a thread costs more than it saves

/// Up to 32 outputs in one layout.
struct Panel {
  std::int64_t offset;  ///< of its first record
  std::int64_t column, columns;
  GroupKind kind;
};

/// How a part is kept.
GroupKind kind_of(const WeightPart& part, WeightFormat format) {
  if (!part.blocks) return format == WeightFormat::kW4 ? GroupKind::kFour : GroupKind::kEight;
  switch (*part.blocks) {
    case BlockType::kQ4_0: return GroupKind::kFour;
    case BlockType::kQ4_1:
    case BlockType::kQ4_K: return GroupKind::kFourMin;
    default: return GroupKind::kEight;
  }
}

/// A group of one output on its way into a record: numbers as they are stored.
struct StoredGroup {
  std::uint16_t scale = 0, minimum = 0;  // f16
  std::uint8_t q[kGroupInputs] = {};
};

std::uint16_t read_u16(const std::byte* at) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return bits;
}
int byte_of(const std::byte* at, std::int64_t i) { return std::to_integer<int>(at[i]); }

/// The sixteen low halves of 16 bytes are weights 0 to 15, the high halves 16 to 31.
void take_nibbles(const std::byte* at, StoredGroup& out) {
  for (std::int64_t i = 0; i < kGroupInputs; ++i) {
    out.q[i] = static_cast<std::uint8_t>(byte_of(at, i % 16) >> (i < 16 ? 0 : 4) & 15);
  }
}

/// Scale and minimum number `i` of 8 of a Q4_K block, in six bits each, from its twelve bytes.
void take_six_bits(const std::byte* packed, std::int64_t i, int& scale, int& minimum) {
  if (i < 4) {
    scale = byte_of(packed, i) & 63;
    minimum = byte_of(packed, i + 4) & 63;
  } else {
    scale = (byte_of(packed, i + 4) & 15) | byte_of(packed, i - 4) >> 6 << 4;
    minimum = byte_of(packed, i + 4) >> 4 | byte_of(packed, i) >> 6 << 4;
  }
}

/// Group `group` of a row of blocks of four bits, or of Q8_0. False if a scale is outside f16.
bool take_group(BlockType type, const std::byte* row, std::int64_t group, StoredGroup& out) {
  const std::int64_t per_block = block_weights(type) / kGroupInputs;
  const std::byte* block = row + group / per_block * block_bytes(type);
  out = {};
  out.scale = read_u16(block);
  if (type == BlockType::kQ4_0) {
    take_nibbles(block + 2, out);
  } else if (type == BlockType::kQ4_1) {
    out.minimum = read_u16(block + 2);
    take_nibbles(block + 4, out);
  } else if (type == BlockType::kQ8_0) {
    for (std::int64_t i = 0; i < kGroupInputs; ++i) {
      out.q[i] = static_cast<std::uint8_t>(byte_of(block, 2 + i) ^ 0x80);
    }
  } else {  // kQ4_K
    const std::int64_t i = group % per_block;
    int scale = 0, minimum = 0;
    take_six_bits(block + 4, i, scale, minimum);
    const float least = f16_to_f32(read_u16(block + 2)) * static_cast<float>(minimum);
    out.scale = f32_to_f16(f16_to_f32(out.scale) * static_cast<float>(scale));
    out.minimum = f32_to_f16(-least);
    const std::byte* numbers = block + 16 + i / 2 * kGroupInputs;
    for (std::int64_t j = 0; j < kGroupInputs; ++j) {
      out.q[j] = static_cast<std::uint8_t>(byte_of(numbers, j) >> (i % 2 * 4) & 15);
    }
  }
  constexpr std::uint16_t kExponent = 0x7c00;
  return (out.scale & kExponent) != kExponent && (out.minimum & kExponent) != kExponent;
}

bool kept_as_is(const WeightPart& part) {
  return part.blocks && (*part.blocks == BlockType::kQ4_0 || *part.blocks == BlockType::kQ4_1 ||
                         *part.blocks == BlockType::kQ4_K || *part.blocks == BlockType::kQ8_0);
}

bool round_group(const float* w, GroupKind kind, StoredGroup& out) {
  RoundedGroup rounded;
  const bool four = kind == GroupKind::kFour;
  if (!(four ? round_to_four_bits(w, rounded) : round_to_eight_bits(w, rounded))) return false;
  out.scale = rounded.scale;
  for (std::int64_t i = 0; i < kGroupInputs; ++i) {
    out.q[i] = static_cast<std::uint8_t>(rounded.q[i] + (four ? 8 : 128));
  }
  return true;
}

class GroupedMatrix final : public PanelMatrix {
 public:
  GroupedMatrix(const StackedRows& rows, std::int64_t n, WeightFormat format, bool& fits)
      : PanelMatrix(n, rows.k, 0), format_(format), groups_(ceil_div(rows.k, kGroupInputs)) {
    std::int64_t column = 0, offset = 0;
    for (const WeightPart& part : rows.parts) {
      const GroupKind kind = kind_of(part, format);
      for (std::int64_t done = 0; done < part.n;) {
        // Parts of one layout share panels.
        if (!list_.empty() && list_.back().kind == kind && list_.back().columns < kPanelColumns) {
          const std::int64_t more = std::min(kPanelColumns - list_.back().columns, part.n - done);
          list_.back().columns += more, done += more, column += more;
          continue;
        }
        const std::int64_t columns = std::min(kPanelColumns, part.n - done);
        list_.push_back({offset, column, columns, kind});
        offset += groups_ * group_bytes(kind);
        done += columns, column += columns;
      }
    }
    panels_ = static_cast<std::int64_t>(list_.size());
    data_ = AlignedBuffer(static_cast<std::size_t>(offset));
    std::atomic<bool> all_fit{true};
    parallel_for(panels_, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> values(static_cast<std::size_t>(groups_ * kGroupInputs));
      for (std::int64_t p = begin; p < end; ++p) {
        if (!fill(list_[static_cast<std::size_t>(p)], rows, values)) all_fit = false;
      }
    });
    fits = all_fit;
  }
  WeightFormat format() const override { return format_; }
  std::int64_t bytes() const override { return static_cast<std::int64_t>(data_.size_bytes()); }

 protected:
  void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
           std::int64_t ldy) const override {
    const GroupedRows rows = rounded(x, m, ldx);
    GroupedPanelProduct* const product = product_for(m);
    // Few rows: each panel is read in one go, as it lies in memory.
    const std::int64_t cut = m <= kFewRows ? groups_ : kBlockGroups;
    over_panels(m, kLeastWork, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float padded_bias[kPanelColumns];
      for (std::int64_t row = 0; row < m; row += kBlockRows) {
        for (std::int64_t g = 0; g < groups_; g += cut) {
          for (std::int64_t i = begin; i < end; ++i) {
            const Panel& p = list_[static_cast<std::size_t>(i)];
            const PanelOutput out =
                output(p.column, p.columns, row, std::min(kBlockRows, m - row), bias, padded_bias,
                       y, ldy, g == 0);
            product(rows, row, g, record(p, g), std::min(cut, groups_ - g), p.kind, out);
          }
        }
      }
    });
  }

 private:
  std::byte* record(const Panel& p, std::int64_t group) const {
    return data_.as<std::byte>() + p.offset + group * group_bytes(p.kind);
  }

  static GroupedPanelProduct* product_for([[maybe_unused]] std::int64_t m) {
#if defined(__x86_64__)
    constexpr std::int64_t kLeastTileRows = 12;  // fewer leave most of a tile empty
    if (isa() >= Isa::kAmx && m >= kLeastTileRows) return grouped_multiply_amx;
    if (isa() >= Isa::kAvx512Bf16) return grouped_multiply_vnni;
    if (isa() >= Isa::kAvx2) return grouped_multiply_avx2;
#endif
    return grouped_multiply_scalar;
  }

  /// In thread-local scratch.
  GroupedRows rounded(const float* x, std::int64_t m, std::int64_t ldx) const {
    const std::int64_t count = m * groups_;
    auto* scratch = thread_scratch<std::byte>(ScratchSlot::kMatmulInput,
                                              count * GroupedRows::bytes_per_group());
    auto* scales = reinterpret_cast<float*>(scratch + count * kGroupInputs);
    auto* sums = reinterpret_cast<std::int32_t*>(scales + count);
    const GroupedRows rows{
        m, groups_, reinterpret_cast<std::int8_t*>(scratch), scales, sums, sums + count};
    parallel_for(m, 1 + 65536 / k_, [&](std::int64_t begin, std::int64_t end) {
      quantise_grouped_rows(x, ldx, k_, begin, end, rows);
    });
    return rows;
  }

  /// Packs the outputs of one panel. `values` is scratch.
  bool fill(const Panel& panel, const StackedRows& rows, std::vector<float>& values) const {
    std::memset(record(panel, 0), 0, static_cast<std::size_t>(groups_ * group_bytes(panel.kind)));
    bool fits = true;
    StoredGroup group;
    for (std::int64_t c = 0; c < panel.columns; ++c) {
      std::int64_t n = panel.column + c;
      const WeightPart* part = rows.parts.data();
      while (n >= part->n) n -= (part++)->n;
      const bool as_is = kept_as_is(*part);
      if (!as_is) rows.read(*part, n, values.data());
      for (std::int64_t g = 0; g < groups_; ++g) {
        const bool ok = as_is ? take_group(*part->blocks, rows.row_blocks(*part, n), g, group)
                              : round_group(values.data() + g * kGroupInputs, panel.kind, group);
        if (ok) store(panel, g, c, group);
        fits = fits && ok;
      }
    }
    return fits;
  }

  void store(const Panel& panel, std::int64_t g, std::int64_t column,
             const StoredGroup& group) const {
    std::byte* to = record(panel, g);
    std::memcpy(to + 2 * column, &group.scale, 2);
    if (panel.kind == GroupKind::kFourMin) {
      std::memcpy(to + 2 * (kPanelColumns + column), &group.minimum, 2);
    }
    to += group_head_bytes(panel.kind);
    for (std::int64_t i = 0; i < kGroupInputs; ++i) {
      std::byte& byte = to[group_offset(panel.kind, column, i)];
      if (panel.kind == GroupKind::kEight) byte = std::byte{group.q[i]};
      else byte |= std::byte{group.q[i]} << group_shift(i);
    }
  }

  const WeightFormat format_;
  const std::int64_t groups_;
  std::vector<Panel> list_;
  AlignedBuffer data_;
};

}  // namespace

Result<std::unique_ptr<PackedMatrix>> pack_grouped(std::span<const WeightPart> parts, std::int64_t n,
                                                   std::int64_t k, DType dtype,
                                                   WeightFormat format) {
  bool fits = true;
  std::unique_ptr<PackedMatrix> matrix =
      std::make_unique<GroupedMatrix>(StackedRows{parts, k, dtype}, n, format, fits);
  if (!fits) {
    return Status::invalid("weights",
                           "a weight is NaN or infinite, or too large for the scale of a group "
                           "(f16); use bf16 or f32");
  }
  return matrix;
}

}  // namespace quire::cpu
