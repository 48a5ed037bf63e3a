#include "engine/device/device_weights.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "kernels/matmul/group_of_blocks.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

constexpr std::int64_t kPiece = std::int64_t{8} << 20;  // of an upload: pinned memory is scarce
constexpr std::int64_t kAlignment = 256;                // of the parts of one allocation

/// Calls take(row, values) with the k values of each row of the stacked parts, on many threads.
template <class Take>
void each_row(std::span<const WeightPart> parts, std::int64_t k, DType dtype, Take take) {
  std::int64_t first = 0;
  for (const WeightPart& part : parts) {
    parallel_for(part.n, 1 + (1 << 16) / k, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> values(to_size(k));
      for (std::int64_t row = begin; row < end; ++row) {
        read_weight_row(part, row, k, dtype, values.data());
        take(first + row, values.data());
      }
    });
    first += part.n;
  }
}

template <class T, class Round>
std::vector<std::byte> converted(std::span<const WeightPart> parts, std::int64_t n, std::int64_t k,
                                 DType dtype, Round round) {
  std::vector<std::byte> out(to_size(n * k) * sizeof(T));
  auto* to = reinterpret_cast<T*>(out.data());
  each_row(parts, k, dtype, [&](std::int64_t row, const float* values) {
    std::transform(values, values + k, to + row * k, round);
  });
  return out;
}

struct Int8Values {
  std::vector<std::int8_t> codes;  ///< [n, k]
  std::vector<float> scales;       ///< [n, k / cuda::kGemvGroup]: the largest of a group is 127
};

Int8Values quantised(std::span<const WeightPart> parts, std::int64_t n, std::int64_t k,
                     DType dtype) {
  constexpr std::int64_t kGroup = cuda::kGemvGroup;
  Int8Values out{std::vector<std::int8_t>(to_size(n * k)),
                 std::vector<float>(to_size(n * (k / kGroup)))};
  each_row(parts, k, dtype, [&](std::int64_t row, const float* values) {
    for (std::int64_t begin = 0; begin < k; begin += kGroup) {
      const std::span group(values + begin, to_size(kGroup));
      float largest = 0;
      for (const float x : group) largest = std::max(largest, std::abs(x));
      const float scale = largest / 127.0f;
      out.scales[at((row * k + begin) / kGroup)] = scale;
      std::int8_t* codes = out.codes.data() + row * k + begin;
      for (const float x : group) {
        *codes++ = scale > 0 ? static_cast<std::int8_t>(std::lround(x / scale)) : std::int8_t{0};
      }
    }
  });
  return out;
}

/// GroupedValues holds matrices in groups of 32 and their offsets in `bytes`.
struct GroupedValues {
  struct Matrix {
    GroupKind kind;
    std::int64_t whole_n;                       ///< outputs of the run that these are of
    std::int64_t n, numbers, scales, minimums;  ///< outputs, and offsets
  };
  std::vector<Matrix> matrices;
  std::vector<std::byte> bytes;
  bool fits;  ///< every group has a scale
};

/// Floats of eight bits stay what they are; a CPU has no instructions for them.
GroupKind device_group_kind(const WeightPart& part, WeightFormat format) {
  return part.blocks == BlockType::kF8_E4M3 ? GroupKind::kFloat8 : group_kind(part, format);
}

/// KeptParts are the parts of a matrix as far as their outputs are kept. Neighbouring parts of the
/// whole matrix with one kind of groups are a run, and multiplied together.
struct KeptParts {
  std::vector<WeightPart> parts;
  std::vector<std::size_t> run;           ///< of each part
  std::vector<std::int64_t> run_outputs;  ///< of each run of the whole matrix
  std::int64_t n = 0;
};

KeptParts kept_parts(std::span<const WeightPart> parts, std::int64_t k, DType dtype,
                     WeightFormat format, std::span<const OutputRange> outputs) {
  KeptParts out;
  std::vector<std::size_t> run_of;
  std::optional<GroupKind> last;
  for (const WeightPart& part : parts) {
    const GroupKind kind = device_group_kind(part, format);
    if (kind != last) out.run_outputs.push_back(0);
    last = kind;
    out.run_outputs.back() += part.n;
    run_of.push_back(out.run_outputs.size() - 1);
  }
  for (const OutputRange& range : outputs) {
    std::int64_t first = 0;  // output of the part in the whole matrix
    for (std::size_t i = 0; i < parts.size(); first += parts[i].n, ++i) {
      const WeightPart& part = parts[i];
      const std::int64_t begin = std::max(range.begin - first, std::int64_t{0}),
                         end = std::min(range.end - first, part.n);
      if (begin >= end) continue;
      const std::int64_t row_bytes = part.blocks
                                         ? k / block_weights(*part.blocks) *
                                               block_bytes(*part.blocks)
                                         : k * static_cast<std::int64_t>(dtype_bytes(dtype));
      out.parts.push_back(
          {static_cast<const std::byte*>(part.data) + begin * row_bytes, end - begin, part.blocks});
      out.run.push_back(run_of[i]);
      out.n += end - begin;
    }
  }
  return out;
}

GroupedValues grouped_values(const KeptParts& kept, std::int64_t k, DType dtype,
                             WeightFormat format) {
  GroupedValues out{{}, {}, true};
  const std::vector<WeightPart>& parts = kept.parts;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i == 0 || kept.run[i] != kept.run[i - 1]) {
      out.matrices.push_back(
          {device_group_kind(parts[i], format), kept.run_outputs[kept.run[i]], 0, 0, 0, 0});
    }
    out.matrices.back().n += parts[i].n;
  }
  std::int64_t size = 0;
  const auto section = [&size](std::int64_t bytes) {
    const std::int64_t at = size;
    size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  for (GroupedValues::Matrix& m : out.matrices) {
    m.numbers = section(cuda::grouped_number_bytes(m.kind, m.n, k));
    m.scales = section(cuda::grouped_scale_bytes(m.kind, m.n, k));
    if (m.kind != GroupKind::kFourMin) continue;
    m.minimums = section(cuda::grouped_scale_bytes(m.kind, m.n, k));
  }
  out.bytes.resize(to_size(size));

  std::atomic<bool> fits{true};
  std::size_t at = 0;
  std::int64_t first = 0;  // output of the part in its matrix
  for (const WeightPart& part : parts) {
    if (first == out.matrices[at].n) ++at, first = 0;
    const GroupedValues::Matrix& m = out.matrices[at];
    std::byte* numbers = out.bytes.data() + m.numbers;
    auto* scales = reinterpret_cast<std::uint16_t*>(out.bytes.data() + m.scales);
    auto* minimums = reinterpret_cast<std::uint16_t*>(out.bytes.data() + m.minimums);
    parallel_for(part.n, 1 + (1 << 14) / k, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> values(to_size(k));
      for (std::int64_t row = begin; row < end; ++row) {
        const auto put = [&](std::int64_t g, const WeightGroup& group) {
          cuda::put_group(m.kind, first + row, g, k, group, numbers, scales, minimums);
        };
        if (!each_group(part, row, k, dtype, m.kind, values.data(), put)) fits = false;
      }
    });
    first += part.n;
  }
  out.fits = fits;
  return out;
}

/// Copies the arrays one behind the other to an allocation of their own.
Result<std::shared_ptr<const void>> upload_joined(
    const std::shared_ptr<DeviceMemory>& memory,
    std::span<const std::span<const std::byte>> arrays) {
  std::int64_t size = 0;
  for (const auto& bytes : arrays) size += count_of(bytes);
  QUIRE_ASSIGN_OR_RETURN(
      void* p, memory->ops().allocate(cuda::MemoryKind::kDevice, std::max<std::int64_t>(1, size)));
  std::shared_ptr<const void> owner(p, [memory](const void* data) {
    memory->give_back(cuda::MemoryKind::kDevice, const_cast<void*>(data));
  });
  DeviceBuffer pinned(memory, cuda::MemoryKind::kPinned);
  auto* to = static_cast<std::byte*>(p);
  for (const auto& bytes : arrays) {
    for (std::int64_t begin = 0; begin < count_of(bytes); begin += kPiece) {
      const std::int64_t n = std::min(kPiece, count_of(bytes) - begin);
      QUIRE_RETURN_IF_ERROR(memory->synchronize());
      QUIRE_RETURN_IF_ERROR(pinned.reserve(n));
      std::memcpy(pinned.data(), bytes.data() + begin, to_size(n));
      QUIRE_RETURN_IF_ERROR(memory->run(cuda::CopyArgs{to, pinned.data(), n}));
      to += n;
    }
  }
  QUIRE_RETURN_IF_ERROR(memory->synchronize());
  return owner;
}

Result<std::unique_ptr<ComputeMatrix>> upload_grouped(const std::shared_ptr<DeviceMemory>& memory,
                                                      const GroupedValues& values,
                                                      DeviceMatrix::Outputs outputs,
                                                      std::int64_t k) {
  QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> data, upload(memory, values.bytes));
  const auto* base = static_cast<const std::byte*>(data.get());
  std::vector<cuda::GroupedWeights> grouped;
  for (const GroupedValues::Matrix& m : values.matrices) {
    const auto halves = [base](std::int64_t offset) {
      return reinterpret_cast<const std::uint16_t*>(base + offset);
    };
    grouped.push_back({base + m.numbers, halves(m.scales),
                       m.kind == GroupKind::kFourMin ? halves(m.minimums) : nullptr, m.n, k, m.kind,
                       m.whole_n});
  }
  return std::unique_ptr<ComputeMatrix>(
      std::make_unique<DeviceMatrix>(std::move(data), std::move(grouped), outputs, k));
}

}  // namespace

Result<std::shared_ptr<const void>> upload(const std::shared_ptr<DeviceMemory>& memory,
                                           std::span<const std::byte> bytes) {
  return upload_joined(memory, {&bytes, 1});
}

Result<std::unique_ptr<ComputeMatrix>> upload_matrix(const std::shared_ptr<DeviceMemory>& memory,
                                                     std::span<const WeightPart> all_parts,
                                                     std::int64_t k, DType dtype,
                                                     WeightFormat format,
                                                     std::span<const OutputRange> outputs) {
  const bool int8 = format == WeightFormat::kInt8 || format == WeightFormat::kW8A8;
  if (int8 && k % cuda::kGemvGroup != 0) {
    return Status(Code::kUnimplemented,
                  "weights are " + std::string(weight_format_name(format)) +
                      ", of which the CUDA engine multiplies matrices with a multiple of " +
                      std::to_string(cuda::kGemvGroup) + " columns, not " + std::to_string(k) +
                      "; use bf16 or f32, or model.backend = cpu",
                  "model.weights");
  }
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t whole_n, count_weight_rows(all_parts, k));
  const OutputRange all{0, whole_n};
  const KeptParts kept_outputs = kept_parts(all_parts, k, dtype, format,
                                            outputs.empty() ? std::span(&all, 1) : outputs);
  const std::span<const WeightPart> parts = kept_outputs.parts;
  const std::int64_t n = kept_outputs.n;
  const DeviceMatrix::Outputs counts{n, whole_n};
  if (int8) {
    const Int8Values values = quantised(parts, n, k, dtype);
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> codes,
                           upload(memory, std::as_bytes(std::span(values.codes))));
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> scales,
                           upload(memory, std::as_bytes(std::span(values.scales))));
    return std::unique_ptr<ComputeMatrix>(
        std::make_unique<DeviceMatrix>(std::move(codes), DType::kI8, counts, k, std::move(scales)));
  }
  const bool in_groups = format == WeightFormat::kW4 || format == WeightFormat::kW8;
  if (in_groups && k % kGroupInputs == 0) {
    const GroupedValues values = grouped_values(kept_outputs, k, dtype, format);
    if (!values.fits) return no_such_groups();
    return upload_grouped(memory, values, counts, k);
  }
  const DType kept = format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16;
  std::shared_ptr<const void> data;
  const bool as_they_are = dtype == kept && std::ranges::none_of(parts, [](const WeightPart& part) {
                             return part.blocks.has_value();
                           });
  if (as_they_are) {
    std::vector<std::span<const std::byte>> arrays;
    for (const WeightPart& part : parts) {
      arrays.emplace_back(static_cast<const std::byte*>(part.data),
                          to_size(part.n * k) * dtype_bytes(kept));
    }
    QUIRE_ASSIGN_OR_RETURN(data, upload_joined(memory, arrays));
  } else if (kept == DType::kBF16) {
    QUIRE_ASSIGN_OR_RETURN(
        data, upload(memory, converted<std::uint16_t>(parts, n, k, dtype, f32_to_bf16)));
  } else {
    const auto same = [](float x) { return x; };
    QUIRE_ASSIGN_OR_RETURN(data, upload(memory, converted<float>(parts, n, k, dtype, same)));
  }
  return std::unique_ptr<ComputeMatrix>(
      std::make_unique<DeviceMatrix>(std::move(data), kept, counts, k));
}

}  // namespace quire
