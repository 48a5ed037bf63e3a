#include "kernels/matmul.h"

#include <new>
#include <string>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/packed_matrix.h"

namespace quire {

Result<std::unique_ptr<PackedMatrix>> pack_weights(std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format) {
  if (k <= 0) return Status::invalid("k", "must be at least 1, is " + std::to_string(k));
  if (dtype == DType::kI8) return Status::invalid("dtype", "weights to pack are f32, f16 or bf16");
  std::int64_t n = 0;
  for (const WeightPart& part : parts) {
    if (part.n <= 0 || part.data == nullptr) return Status::invalid("parts", "every part needs data and at least one row");
    n += part.n;
    if (part.blocks && k % block_weights(*part.blocks) != 0) {
      return Status::invalid("k", "must be a multiple of " + std::to_string(block_weights(*part.blocks)) + " for blocks of " +
                                      std::string(block_type_name(*part.blocks)) + ", is " + std::to_string(k));
    }
  }
  if (n == 0) return Status::invalid("parts", "at least one part is needed");
  try {
    switch (format) {
      case WeightFormat::kF32: return cpu::pack_f32(parts, n, k, dtype);
      case WeightFormat::kBF16: return cpu::pack_bf16(parts, n, k, dtype);
      case WeightFormat::kInt8:
      case WeightFormat::kW8A8: return cpu::pack_int8(parts, n, k, dtype, format == WeightFormat::kW8A8);
      case WeightFormat::kW4:
      case WeightFormat::kW8: return cpu::pack_grouped(parts, n, k, dtype, format);
    }
  } catch (const std::bad_alloc&) {
    return Status::exhausted("no memory to pack weights [" + std::to_string(n) + ", " + std::to_string(k) + "]");
  }
  return Status::invalid("format", "unknown weight format");
}

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return "f32";
    case WeightFormat::kBF16: return "bf16";
    case WeightFormat::kInt8: return "int8";
    case WeightFormat::kW8A8: return "w8a8";
    case WeightFormat::kW4: return "w4";
    case WeightFormat::kW8: return "w8";
  }
  return "f32";
}

bool cpu_has_bf16() { return cpu::isa() >= cpu::Isa::kAvx512Bf16; }

const char* cpu_isa() {
  switch (cpu::isa()) {
    case cpu::Isa::kScalar: return "scalar";
    case cpu::Isa::kAvx2: return "avx2";
    case cpu::Isa::kAvx512: return "avx512";
    case cpu::Isa::kAvx512Bf16: return "avx512_bf16";
    case cpu::Isa::kAmx: return "amx";
  }
  return "scalar";
}

}  // namespace quire
