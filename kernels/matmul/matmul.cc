#include "kernels/matmul/matmul.h"

#include <new>
#include <string>

#include "kernels/cpu/cpu_features.h"
#include "kernels/matmul/cpu/packed_matrix.h"
#include "kernels/matmul/group_of_blocks.h"

namespace quire {

Result<std::unique_ptr<PackedMatrix>> pack_weights(std::span<const WeightPart> parts,
                                                   std::int64_t k, DType dtype,
                                                   WeightFormat format) {
  if (dtype == DType::kI8) return Status::invalid("dtype", "weights to pack are f32, f16 or bf16");
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t n, count_weight_rows(parts, k));
  try {
    switch (format) {
      case WeightFormat::kF32:
        return cpu::pack_f32(parts, n, k, dtype);
      case WeightFormat::kBF16:
        return cpu::pack_bf16(parts, n, k, dtype);
      case WeightFormat::kInt8:
      case WeightFormat::kW8A8:
        return cpu::pack_int8(parts, n, k, dtype, format == WeightFormat::kW8A8);
      case WeightFormat::kW4:
      case WeightFormat::kW8:
        return cpu::pack_grouped(parts, n, k, dtype, format);
    }
  } catch (const std::bad_alloc&) {
    return Status::exhausted("no memory to pack weights [" + std::to_string(n) + ", " +
                             std::to_string(k) + "]");
  }
  return Status::invalid("format", "unknown weight format");
}

std::string_view weight_format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kBF16:
      return "bf16";
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kW8A8:
      return "w8a8";
    case WeightFormat::kW4:
      return "w4";
    case WeightFormat::kW8:
      return "w8";
  }
  return "f32";
}

bool cpu_has_bf16() { return cpu::isa() >= cpu::Isa::kAvx512Bf16; }

const char* cpu_isa() {
  switch (cpu::isa()) {
    case cpu::Isa::kScalar:
      return "scalar";
    case cpu::Isa::kAvx2:
      return "avx2";
    case cpu::Isa::kAvx512:
      return "avx512";
    case cpu::Isa::kAvx512Bf16:
      return "avx512_bf16";
    case cpu::Isa::kAmx:
      return "amx";
  }
  return "scalar";
}

}  // namespace quire
