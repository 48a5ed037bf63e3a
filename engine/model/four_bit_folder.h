/// four_bit_weights() reads model folders whose layers were quantised to four bits by GPTQ or AWQ.
/// Internal to engine/model.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/model/json_fields.h"
#include "engine/model/safetensors.h"
#include "engine/model/weights.h"

namespace quire {

/// FourBitLayout says how `quantization_config` stores the matrices of layers. A weight is scale *
/// (q - zero), with 4-bit q and zero, and one scale and zero for each output and group of inputs.
/// With k inputs and n outputs:
///  - GPTQ (Frantar et al. 2022; AutoGPTQ, GPTQModel): qweight [k / 8, n] i32, input 8r + i in bits
///    4i; qzeros [groups, n / 8] i32, output 8c + i in bits 4i; scales [groups, n] f16; g_idx [k].
///  - AWQ (Lin et al. 2023; AutoAWQ "gemm"): qweight [k, n / 8] i32 and qzeros [groups, n / 8],
///    eight outputs each in the order 0 2 4 6 1 3 5 7 from the lowest bits on; scales [groups, n]
///    f16.
struct FourBitLayout {
  enum class Method : std::uint8_t { kGptq, kAwq };
  Method method = Method::kGptq;
  std::int64_t group_size = 128;  ///< inputs of a group, a multiple of 32; -1: all
  /// The number added to a stored zero: 1 in GPTQ's first checkpoint format, else 0.
  int zero_offset = 0;
};

/// Reads a quantization_config of method "gptq" or "awq" through `in`. Errors go to `in`: other
/// widths, group sizes that are no multiple of 32, versions of AWQ other than gemm.
FourBitLayout read_four_bit_layout(JsonFields& in);

/// Makes the source of a folder's tensors whose matrices may be stored as `layout` says. Such a
/// matrix is returned as blocks: Q4_0 if every zero is 8, else Q4_1, whose minimum -scale * zero is
/// rounded to f16. The folder must outlive the source. get() refuses an order of inputs by
/// activation (desc_act) that splits groups.
std::unique_ptr<WeightSource> four_bit_weights(const TensorFolder& folder, std::string location,
                                               const FourBitLayout& layout);

}  // namespace quire
