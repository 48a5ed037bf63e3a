/// This file declares matrix products with packed weights: Y = X * W^T.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/matmul/quant_blocks.h"

namespace quire {

/// Selects how a weight matrix is stored and multiplied.
enum class WeightFormat : std::uint8_t {
  kF32,  ///< f32 weights and inputs: the exact path, also for CPUs without bf16 units
  /// bf16 weights, inputs rounded to bf16, f32 sums (AMX, AVX512-BF16, AVX-512 or AVX2, chosen at
  /// run time)
  kBF16,
  /// Weight-only int8: one f32 scale per output row and group of 64 inputs. A weight means q *
  /// scale, rounded to bf16 except on AVX512-BF16, which scales the sum of a group. The rest is as
  /// in kBF16.
  kInt8,
  /// Weights are stored as in kInt8. Where vector units multiply bytes ("avx512_bf16"), inputs are
  /// also rounded to int8, with a scale for each row and group. Batches then decode up to twice as
  /// fast, and the loss of the logits grows by half. Elsewhere the rest is as in kInt8.
  kW8A8,
  /// Four bits: groups of 32 inputs, each output with an f16 scale per group and, where the source
  /// has one, an f16 minimum. Inputs are rounded to int8 in the same groups. Blocks of four bits
  /// are stored as they are (Q4_0, Q4_1; scales of Q4_K are rounded to f16). Q5_0, Q8_0 and IQ4_NL
  /// are stored in eight bits as they are, and other blocks are rounded to eight bits. f32, f16 and
  /// bf16 are rounded to four, with the scale that fits a group best.
  kW4,
  /// Like kW4, but anything with more than four bits is stored in eight. It is for matrices that
  /// lose too much in four bits, such as the head.
  kW8,
};

/// Returns "f32", "bf16", "int8", "w8a8", "w4" or "w8".
std::string_view weight_format_name(WeightFormat format);

/// A weight matrix W [n, k], packed once for this CPU. It is immutable and may be shared between
/// threads.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual std::int64_t n() const = 0;  ///< outputs
  virtual std::int64_t k() const = 0;  ///< inputs
  virtual WeightFormat format() const = 0;
  /// Returns the bytes of the packed weights, which a decode step has to read.
  virtual std::int64_t bytes() const = 0;

  /// Computes y[m, n] = x[m, k] * W^T (+ bias[n]). x and y are row-major f32 with row strides ldx
  /// >= k and ldy >= n; y is overwritten and must overlap nothing. m == 0 is valid.
  ///
  /// Row r of y depends neither on m, nor on the other rows, nor on the number of threads. The same
  /// input row gives the same bits alone and in any batch; bits may differ between instruction
  /// sets. Threads: one call at a time per calling thread; scratch is thread-local. Errors:
  /// kInvalidArgument.
  virtual Status multiply(const float* x, std::int64_t m, std::int64_t ldx, const float* bias,
                          float* y, std::int64_t ldy) const = 0;
};

/// A set of weight rows to pack.
struct WeightPart {
  const void* data;  ///< [n, k] row-major: values, or blocks without gaps
  std::int64_t n;
  std::optional<BlockType> blocks;  ///< none: values of the dtype given to pack_weights()
};

/// Packs row-major weights [n, k] of dtype f32, f16 or bf16, or blocks. `parts` are not kept.
/// Several matrices with the same k may be stacked, one part each, so that one product serves all
/// of them. Errors: kInvalidArgument (field k: not a multiple of a block; weights: one is not
/// finite or a scale is outside f16, where the format has scales), kResourceExhausted.
Result<std::unique_ptr<PackedMatrix>> pack_weights(std::span<const WeightPart> parts,
                                                   std::int64_t k, DType dtype,
                                                   WeightFormat format);

/// Computes multiply() as plain f64 loops over W [n, k] f32.
void matmul_reference(const float* x, std::int64_t m, std::int64_t k, const float* w,
                      std::int64_t n, const float* bias, float* y);

/// Returns whether this CPU multiplies bf16 itself (AMX or AVX512-BF16). Otherwise kBF16 saves
/// memory but computes like kF32.
bool cpu_has_bf16();
/// Returns "amx", "avx512_bf16", "avx512", "avx2" or "scalar": the widest instruction set that
/// kernels use here. The environment variable QUIRE_MAX_ISA lowers it.
const char* cpu_isa();

}  // namespace quire
