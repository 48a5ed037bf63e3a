#include "engine/device/device_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/parallel.h"

namespace quire {
namespace {

constexpr std::int64_t kPiece = std::int64_t{8} << 20;  // of an upload: pinned memory is dear

template <class T, class Round>
std::vector<std::byte> converted(std::span<const WeightPart> parts, std::int64_t k, DType dtype, Round round) {
  std::int64_t n = 0;
  for (const WeightPart& part : parts) n += part.n;
  std::vector<std::byte> out(static_cast<std::size_t>(n * k) * sizeof(T));
  auto* to = reinterpret_cast<T*>(out.data());
  for (const WeightPart& part : parts) {
    parallel_for(part.n * k, 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) to[i] = round(load_f32(part.data, dtype, i));
    });
    to += part.n * k;
  }
  return out;
}

struct Int8Values {
  std::vector<std::int8_t> codes;  ///< [n, k]
  std::vector<float> scales;       ///< [n, k / cuda::kGemvGroup]: the largest of a group is 127
};

Int8Values quantised(std::span<const WeightPart> parts, std::int64_t n, std::int64_t k, DType dtype) {
  const std::int64_t groups = k / cuda::kGemvGroup;
  Int8Values out{std::vector<std::int8_t>(static_cast<std::size_t>(n * k)), std::vector<float>(static_cast<std::size_t>(n * groups))};
  std::int64_t done = 0;
  for (const WeightPart& part : parts) {
    parallel_for(part.n * groups, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t g = begin; g < end; ++g) {
        float largest = 0;
        for (std::int64_t i = g * cuda::kGemvGroup; i < (g + 1) * cuda::kGemvGroup; ++i) largest = std::max(largest, std::abs(load_f32(part.data, dtype, i)));
        const float scale = largest / 127.0f;
        out.scales[static_cast<std::size_t>(done / cuda::kGemvGroup + g)] = scale;
        for (std::int64_t i = g * cuda::kGemvGroup; i < (g + 1) * cuda::kGemvGroup; ++i) {
          out.codes[static_cast<std::size_t>(done + i)] = scale > 0 ? static_cast<std::int8_t>(std::lround(load_f32(part.data, dtype, i) / scale)) : std::int8_t{0};
        }
      }
    });
    done += part.n * k;
  }
  return out;
}

}  // namespace

Result<std::shared_ptr<const void>> upload(const std::shared_ptr<DeviceMemory>& memory, std::span<const std::byte> bytes) {
  const auto size = static_cast<std::int64_t>(bytes.size());
  QUIRE_ASSIGN_OR_RETURN(void* p, memory->ops().allocate(cuda::MemoryKind::kDevice, std::max<std::int64_t>(1, size)));
  std::shared_ptr<const void> owner(p, [memory](const void* data) { memory->give_back(cuda::MemoryKind::kDevice, const_cast<void*>(data)); });
  DeviceBuffer pinned(memory, cuda::MemoryKind::kPinned);
  for (std::int64_t begin = 0; begin < size; begin += kPiece) {
    const std::int64_t n = std::min(kPiece, size - begin);
    QUIRE_RETURN_IF_ERROR(memory->settle());
    QUIRE_RETURN_IF_ERROR(pinned.reserve(n));
    std::memcpy(pinned.data(), bytes.data() + begin, static_cast<std::size_t>(n));
    QUIRE_RETURN_IF_ERROR(memory->run(cuda::CopyArgs{static_cast<std::byte*>(p) + begin, pinned.data(), n}));
  }
  QUIRE_RETURN_IF_ERROR(memory->settle());
  return owner;
}

Result<std::unique_ptr<ComputeMatrix>> upload_matrix(const std::shared_ptr<DeviceMemory>& memory, std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format) {
  const bool int8 = format == WeightFormat::kInt8 || format == WeightFormat::kW8A8;
  if (int8 && k % cuda::kGemvGroup != 0) {
    return Status(Code::kUnimplemented, "weights are " + std::string(weight_format_name(format)) + ", of which the CUDA engine multiplies matrices with a multiple of " +
                                            std::to_string(cuda::kGemvGroup) + " columns, not " + std::to_string(k) + "; use bf16 or f32, or model.backend = cpu", "model.weights");
  }
  if (k <= 0 || parts.empty()) return Status::invalid("parts", "every matrix needs rows and columns");
  std::int64_t n = 0;
  for (const WeightPart& part : parts) n += part.n;
  if (int8) {
    const Int8Values values = quantised(parts, n, k, dtype);
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> codes, upload(memory, std::as_bytes(std::span(values.codes))));
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<const void> scales, upload(memory, std::as_bytes(std::span(values.scales))));
    return std::unique_ptr<ComputeMatrix>(std::make_unique<DeviceMatrix>(std::move(codes), DType::kI8, n, k, std::move(scales)));
  }
  const DType kept = format == WeightFormat::kBF16 || format == WeightFormat::kW4 || format == WeightFormat::kW8 ? DType::kBF16 : DType::kF32;
  std::shared_ptr<const void> data;
  if (dtype == kept && parts.size() == 1) {
    QUIRE_ASSIGN_OR_RETURN(data, upload(memory, {static_cast<const std::byte*>(parts[0].data), static_cast<std::size_t>(n * k) * dtype_bytes(kept)}));
  } else if (kept == DType::kBF16) {
    QUIRE_ASSIGN_OR_RETURN(data, upload(memory, converted<std::uint16_t>(parts, k, dtype, [](float x) { return f32_to_bf16(x); })));
  } else {
    QUIRE_ASSIGN_OR_RETURN(data, upload(memory, converted<float>(parts, k, dtype, [](float x) { return x; })));
  }
  return std::unique_ptr<ComputeMatrix>(std::make_unique<DeviceMatrix>(std::move(data), kept, n, k));
}

}  // namespace quire
