/// compressed_weights() reads model folders whose matrices have eight bits (floats or whole
/// numbers) or four, as vLLM's users have them. Internal to engine/model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/model/json_fields.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

namespace quire {

/// CompressedLayout says how `quantization_config` stores the matrices of layers. A weight [n, k]
/// is a number times the scale of the part of the matrix that it lies in:
///  - `fp8` (Qwen3, DeepSeek; AutoFP8): weight F8_E4M3; weight_scale_inv [n / rows, k / columns],
///  or
///    weight_scale, one or [n, 1].
///  - `compressed-tensors` (llm-compressor): weight F8_E4M3 or I8 and weight_scale. Or
///  weight_packed
///    i32: four bits [n, k / 8], input 8c + i in bits 4i, plus 8; eight bits [n, k / 4], input
///    4c + i in bits 8i, plus 128; weight_scale [n, groups]; and, if asymmetric, weight_zero_point
///    [n / 8, groups] i32, output 8r + i in bits 4i, plus 8.
/// Scales are f32, f16 or bf16. Inputs of products are not rounded as the file may ask for.
struct CompressedLayout {
  enum class Numbers : std::uint8_t { kFloat8, kInt8, kInt4 };
  Numbers numbers = Numbers::kFloat8;
  /// Outputs and inputs that share a scale; 0: all of a matrix.
  std::int64_t rows = 0, columns = 0;
  bool zero_points = false;  ///< kInt4 alone
};

/// Reads a quantization_config of method "fp8" or "compressed-tensors" through `in`. Errors go to
/// `in`: other numbers, groups of inputs that are no multiple of 32, mixed or sparse formats.
CompressedLayout read_compressed_layout(JsonFields& in);

/// Makes the source of a folder's tensors whose matrices may be stored as `layout` says. Such a
/// matrix is returned as blocks: F8_E4M3, Q8_0, Q4_0, or Q4_1 where zero points differ from 8;
/// scales of whole numbers, and minimums, are rounded to f16. The folder must outlive the source.
std::unique_ptr<WeightSource> compressed_weights(const TensorFolder& folder, std::string location,
                                                 const CompressedLayout& layout);

}  // namespace quire
