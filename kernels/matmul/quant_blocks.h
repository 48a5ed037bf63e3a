/// This file declares blocks of quantized weights as GGUF files store them, those of floats of
/// eight bits, and their expansion to f32.
#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

/// Layouts of a block: scales and the small numbers of neighbouring weights of one row. The names
/// are those of ggml, but for the last.
enum class BlockType : std::uint8_t {
  kQ4_0,     ///< 32 weights, q * d with q in [-8, 7]; 18 bytes
  kQ4_1,     ///< 32 weights, q * d + m with q in [0, 15]; 20 bytes
  kQ5_0,     ///< 32 weights, q * d with q in [-16, 15]; 22 bytes
  kQ5_1,     ///< 32 weights, q * d + m with q in [0, 31]; 24 bytes
  kQ8_0,     ///< 32 weights, q * d with q in [-128, 127]; 34 bytes
  kQ2_K,     ///< 256 weights in 16 groups, each with a 4-bit scale and minimum; 84 bytes
  kQ3_K,     ///< 256 weights in 16 groups, each with a 6-bit scale; 110 bytes
  kQ4_K,     ///< 256 weights in 8 groups, each with a 6-bit scale and minimum; 144 bytes
  kQ5_K,     ///< 256 weights as in kQ4_K, with q of five bits; 176 bytes
  kQ6_K,     ///< 256 weights in 16 groups, each with an 8-bit scale; 210 bytes
  kIQ4_NL,   ///< 32 weights, d times one of 16 unevenly spread values; 18 bytes
  kF8_E4M3,  ///< 32 weights, d times a float of eight bits; d is f32; 36 bytes
};
inline constexpr int kNumGgmlTypes = 11;  ///< the first ones
inline constexpr int kNumBlockTypes = 12;

/// Returns the number of weights of a block: 32 or 256.
std::int64_t block_weights(BlockType type);
/// Returns the number of bytes of a block.
std::int64_t block_bytes(BlockType type);
/// Returns "Q4_0", "Q4_K", ...
std::string_view block_type_name(BlockType type);

/// Writes num_blocks * block_weights(type) values to `out`, which must overlap nothing. `blocks`
/// holds num_blocks * block_bytes(type) bytes, little-endian, of any alignment. Every value has the
/// bits that the reference implementation (gguf.quants.dequantize) gives, and of F8_E4M3 those of
/// the product in f32. Zero blocks and any bytes
/// are valid; a scale that is not a number gives values that are not numbers. Threads: any.
void dequantise_blocks(BlockType type, const void* blocks, std::int64_t num_blocks, float* out);

/// Reads a block whose 32 weights are whole numbers times the f16 in its first two bytes: Q4_0,
/// Q5_0, Q8_0, IQ4_NL. Returns false, with `numbers` unchanged, for other types.
bool block_numbers(BlockType type, const void* block, std::int8_t* numbers);

/// Writes the steps of the 16 groups of a Q3_K or Q6_K block: each of the 16 weights of a group is
/// a whole multiple of its step. Returns false, with `steps` unchanged, for other types.
bool block_steps(BlockType type, const void* block, float* steps);

/// Returns whether the scales of all blocks, and floats of eight bits, are finite, which makes all
/// weights finite.
bool blocks_are_finite(BlockType type, const void* blocks, std::int64_t num_blocks);

}  // namespace quire
