#include "engine/device/device_weights.h"

#include <algorithm>
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
  if (format != WeightFormat::kBF16 && format != WeightFormat::kF32) {
    return Status(Code::kUnimplemented, "weights are " + std::string(weight_format_name(format)) + ", which the CUDA engine does not multiply; use bf16 or f32, or model.backend = cpu", "model.weights");
  }
  if (k <= 0 || parts.empty()) return Status::invalid("parts", "every matrix needs rows and columns");
  std::int64_t n = 0;
  for (const WeightPart& part : parts) n += part.n;
  const DType kept = format == WeightFormat::kBF16 ? DType::kBF16 : DType::kF32;
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
