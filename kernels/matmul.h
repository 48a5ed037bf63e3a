/// Matrix products with packed weights: Y = X * W^T.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/quant_blocks.h"

namespace quire {

/// How a weight matrix is kept and multiplied.
enum class WeightFormat : std::uint8_t {
  kF32,  ///< f32 weights, f32 inputs: the exact path, and CPUs without bf16 units
  /// bf16 weights, inputs rounded to bf16, f32 sums (AMX, AVX512-BF16, AVX-512 or AVX2, chosen at
  /// run time)
  kBF16,
  /// weight-only int8: per output row and group of 64 inputs a f32 scale; a weight means q * scale
  /// (rounded to bf16 except on AVX512-BF16, which scales the sum of a group), the rest is kBF16
  kInt8,
  /// Weights as kInt8; where vector units multiply bytes ("avx512_bf16"), inputs are rounded to
  /// int8, too, with a scale for each row and group: batches decode up to twice as fast, logits
  /// lose half as much again. Elsewhere the rest is kInt8's
  kW8A8,
  /// Four bits: groups of 32 inputs with a f16 scale and, where the source has one, a f16 minimum
  /// for each output. Inputs are rounded to int8 in the same groups. Blocks of four bits are kept
  /// as they are (Q4_0, Q4_1; scales of Q4_K are rounded to f16), Q8_0 in eight bits; other blocks
  /// are rounded to eight bits, and f32, f16 and bf16 to four, with the scale that fits a group
  /// best
  kW4,
  /// Like kW4, but whatever has more than four bits is kept in eight: for matrices that lose too
  /// much in four, such as the head
  kW8,
};

/// "f32", "bf16", "int8", "w8a8", "w4", "w8".
std::string_view weight_format_name(WeightFormat format);

/// A weight matrix W [n, k], packed once for this CPU. Immutable; shared freely between threads.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::int64_t n() const = 0;  ///< outputs
  virtual std::int64_t k() const = 0;  ///< inputs
  virtual WeightFormat format() const = 0;
  /// Bytes of the packed weights: what a decode step has to read.
  virtual std::int64_t bytes() const = 0;

  /// y[m, n] = x[m, k] * W^T (+ bias[n]). x and y are row-major f32 with row strides ldx >= k and
  /// ldy >= n; y is overwritten and overlaps nothing. m == 0 is valid. Row r of y does not depend
  /// on m, on the other rows or on the number of threads: the same input row gives the same bits
  /// alone and in any batch (bits may differ between instruction sets). Threads: one call at a time
  /// per calling thread; scratch is thread-local. Errors: kInvalidArgument.
  virtual Status multiply(const float* x, std::int64_t m, std::int64_t ldx, const float* bias,
                          float* y, std::int64_t ldy) const = 0;
};

/// Rows of weights to pack.
struct WeightPart {
  const void* data;  ///< [n, k] row-major: values, or blocks without gaps
  std::int64_t n;
  std::optional<BlockType> blocks;  ///< none: values of the dtype that pack_weights() is given
};

/// Packs row-major weights [n, k] of dtype f32, f16 or bf16, or blocks. `parts` are not kept.
/// Several matrices with the same k may be stacked (rows of all of them, in order) so that one
/// product serves them: pass each as one part. Errors: kInvalidArgument (field k: not a multiple of
/// a block; weights: one is not finite or a scale is outside f16, where the format has scales),
/// kResourceExhausted.
Result<std::unique_ptr<PackedMatrix>> pack_weights(std::span<const WeightPart> parts,
                                                   std::int64_t k, DType dtype,
                                                   WeightFormat format);

/// What multiply() means: plain f64 loops over W [n, k] f32.
void matmul_reference(const float* x, std::int64_t m, std::int64_t k, const float* w,
                      std::int64_t n, const float* bias, float* y);

/// True when this CPU multiplies bf16 itself (AMX or AVX512-BF16); otherwise kBF16 saves memory,
/// and computes like kF32.
bool cpu_has_bf16();
/// "amx", "avx512_bf16", "avx512", "avx2" or "scalar": the widest instruction set kernels will use
/// here. The environment variable QUIRE_MAX_ISA lowers it.
const char* cpu_isa();

}  // namespace quire
