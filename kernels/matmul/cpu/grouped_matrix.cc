// This file holds weights in groups of 32: packed from values or blocks, multiplied with inputs
// rounded to int8.
#include <atomic>
#include <cstring>
#include <vector>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/matmul/cpu/grouped_kernels.h"
#include "kernels/matmul/cpu/packed_matrix.h"
#include "kernels/matmul/cpu/panel_matrix.h"
#include "kernels/matmul/group_of_blocks.h"

namespace quire::cpu {
namespace {

constexpr std::int64_t kBlockGroups = 64;  // 2,048 inputs of a block of rows stay in L2
static_assert(kBlockRows % kGroupedRoundRows == 0, "products begin at a round");
constexpr double kLeastWork = 1e7;  // below this, waking a thread costs more than it saves

/// A panel of up to 32 outputs in one layout.
struct Panel {
  std::int64_t offset;  ///< offset of its first record
  std::int64_t column, columns;
  GroupKind kind;
};

class GroupedMatrix final : public PanelMatrix {
 public:
  GroupedMatrix(const StackedRows& rows, std::int64_t n, WeightFormat format, bool& fits)
      : PanelMatrix(n, rows.k, 0), format_(format), groups_(ceil_div(rows.k, kGroupInputs)) {
    std::int64_t column = 0, offset = 0;
    for (const WeightPart& part : rows.parts) {
      const GroupKind kind = group_kind(part, format);
      for (std::int64_t done = 0; done < part.n;) {
        // Parts with the same layout share panels.
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
    data_ = WeightBuffer(static_cast<std::size_t>(offset));
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
    GroupedPairProduct* const pair = m == 1 ? pair_product() : nullptr;
    if (pair != nullptr) return run_row(rows, *pair, bias, y);
    GroupedPanelProduct* const product = product_for(m);
    // With few rows each panel is read whole, in memory order.
    const std::int64_t cut = m <= kFewRows ? groups_ : kBlockGroups;
    over_panels(m, kLeastWork, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float padded_bias[kPanelColumns];
      for (std::int64_t row = 0; row < m; row += kBlockRows) {
        for (std::int64_t g = 0; g < groups_; g += cut) {
          for (std::int64_t i = begin; i < end; ++i) {
            const Panel& p = list_[static_cast<std::size_t>(i)];
            const PanelOutput out = output(p.column, p.columns, row, std::min(kBlockRows, m - row),
                                           bias, padded_bias, y, ldy, g == 0);
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

  /// Multiplies one row, two panels at a time where two neighbours are of one kind.
  void run_row(const GroupedRows& rows, GroupedPairProduct& pair, const float* bias,
               float* y) const {
    GroupedPanelProduct* const product = product_for(1);
    over_panels(1, kLeastWork, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float sums[2 * kPanelColumns];
      for (std::int64_t i = begin; i < end; ++i) {
        const Panel& p = list_[static_cast<std::size_t>(i)];
        const Panel& last = list_[static_cast<std::size_t>(std::min(i + 1, end - 1))];
        if (i + 1 < end && last.kind == p.kind && p.columns == kPanelColumns) {
          const auto bytes = static_cast<std::size_t>(p.columns + last.columns) * sizeof(float);
          std::memset(sums, 0, sizeof sums);
          if (bias != nullptr) std::memcpy(sums, bias + p.column, bytes);
          pair(rows, record(p, 0), groups_, p.kind, sums);
          std::memcpy(y + p.column, sums, bytes);
          ++i;
        } else {
          product(rows, 0, 0, record(p, 0), groups_, p.kind,
                  output(p.column, p.columns, 0, 1, bias, sums, y, n_, true));
        }
      }
    });
  }

  static GroupedPairProduct* pair_product() {
#if defined(__x86_64__)
    if (isa() >= Isa::kAvx512Bf16) return grouped_multiply_pair_vnni;
#endif
    return nullptr;
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

  /// Rounds the inputs into thread-local scratch.
  GroupedRows rounded(const float* x, std::int64_t m, std::int64_t ldx) const {
    const std::int64_t count = m * groups_;
    auto* scratch = thread_scratch<std::byte>(ScratchSlot::kMatmulInput,
                                              count * GroupedRows::bytes_per_group());
    auto* scales = reinterpret_cast<float*>(scratch + count * kGroupInputs);
    auto* sums = reinterpret_cast<std::int32_t*>(scales + count);
    const GroupedRows rows{m,      groups_, reinterpret_cast<std::int8_t*>(scratch),
                           scales, sums,    sums + count};
    parallel_for(m, 1 + 65536 / k_, [&](std::int64_t begin, std::int64_t end) {
      quantise_grouped_rows(x, ldx, k_, begin, end, rows);
    });
    return rows;
  }

  /// Packs the outputs of one panel. `values` is scratch.
  bool fill(const Panel& panel, const StackedRows& rows, std::vector<float>& values) const {
    std::memset(record(panel, 0), 0, static_cast<std::size_t>(groups_ * group_bytes(panel.kind)));
    bool fits = true;
    for (std::int64_t c = 0; c < panel.columns; ++c) {
      std::int64_t n = panel.column + c;
      const WeightPart* part = rows.parts.data();
      while (n >= part->n) n -= (part++)->n;
      const auto put = [&](std::int64_t g, const WeightGroup& group) { store(panel, g, c, group); };
      fits = each_group(*part, n, k_, rows.dtype, panel.kind, values.data(), put) && fits;
    }
    return fits;
  }

  void store(const Panel& panel, std::int64_t g, std::int64_t column,
             const WeightGroup& group) const {
    std::byte* to = record(panel, g);
    std::memcpy(to + 2 * column, &group.scale, 2);
    if (panel.kind == GroupKind::kFourMin) {
      std::memcpy(to + 2 * (kPanelColumns + column), &group.minimum, 2);
    }
    to += group_head_bytes(panel.kind);
    for (std::int64_t i = 0; i < kGroupInputs; ++i) {
      std::byte& byte = to[group_offset(panel.kind, column, i)];
      if (panel.kind == GroupKind::kEight)
        byte = std::byte{group.q[i]};
      else
        byte |= std::byte{group.q[i]} << group_shift(i);
    }
  }

  const WeightFormat format_;
  const std::int64_t groups_;
  std::vector<Panel> list_;
  WeightBuffer data_;
};

}  // namespace

Result<std::unique_ptr<PackedMatrix>> pack_grouped(std::span<const WeightPart> parts,
                                                   std::int64_t n, std::int64_t k, DType dtype,
                                                   WeightFormat format) {
  bool fits = true;
  std::unique_ptr<PackedMatrix> matrix = std::make_unique<GroupedMatrix>(
      StackedRows{parts, k, dtype}, n, format, fits);
  if (!fits) return no_such_groups();
  return matrix;
}

}  // namespace quire::cpu
