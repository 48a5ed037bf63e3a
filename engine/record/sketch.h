/// The sketch of one context: what selection needs and nothing more .
///
/// Record, little-endian, checksummed by the store (engine/README.md, "Sketch record"):
///   header, 48 bytes: u32 magic "QSK1", u16 version, u16 parts, u32 num_layers, num_kv_heads,
///   num_heads, head_dim, block_tokens, num_blocks, u64 num_tokens, u32 mean_bits, u32 zero kMeans
///   mean of rot(k_t, t), t counted from the context's start: bf16 scales
///   [num_layers][num_kv_heads][head_dim], then
///                integers of mean_bits each [num_layers][num_blocks][num_kv_heads][head_dim]; a
///                value is integer * scale of its channel
///   kMinMax      bf16 [num_layers][num_blocks][2][num_kv_heads][head_dim]   channel-wise bounds of
///   the same keys, rounded outwards kLocalQuery  mean raw q over the local (last two) blocks: bf16
///   scales [num_layers][num_heads], then i8 [num_layers][num_heads][head_dim] kStats       f32
///   alpha [num_layers][num_blocks], f32 sustained [same], u16 representative's place in its block
///   [same]
/// Parts not in `parts` are left out.
///
/// The record of a context of 400 tokens in blocks of 16 stays within 2 % of a 16-bit KV for every
/// model family in use. Bounds alone would take 6 %, and only page-wise retrievers read them: they
/// are off unless asked for. Scales are kept per channel, because keys have channels with
/// magnitudes of their own (KIVI, arXiv 2402.02750, §3); the integers of the means have 8 bits
/// where the record then keeps to the 2 %, else 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cachestore/value_buffer.h"
#include "engine/record/kv_layout.h"
#include "kernels/rope.h"

namespace quire {

enum SketchPart : std::uint16_t {
  kSketchMeans = 1,
  kSketchMinMax = 2,
  kSketchLocalQuery = 4,
  kSketchStats = 8,
  kSketchDefault = kSketchMeans | kSketchLocalQuery | kSketchStats,  ///< written at ingest
  kSketchAll = 15
};
inline constexpr std::uint16_t kSketchVersion = 2;
/// What a record may take of the KV it describes.
inline constexpr double kSketchShare = 0.02;

/// Attention statistics of one block in one layer, read off its representative: the token with the
/// highest sustained attention
///.
struct BlockStats {
  /// Decay of attention with distance; smaller is more important. NaN: no valid fit, ranked last
  float alpha;
  float sustained;              ///< mean attention from later tokens; smaller is less important
  std::int32_t representative;  ///< token index within the context
};

/// A parsed record; points into the bytes it was parsed from, which must stay. Any alignment. No
/// accessor but pauta_tokens() allocates.
class SketchView {
 public:
  /// Checks every size against the record's length and every stored index. Errors: kCorruption,
  /// saying which field; a record of another version is one too: a miss that is rebuilt.
  static Result<SketchView> parse(std::span<const std::byte> record);

  std::int32_t num_layers() const { return num_layers_; }
  std::int32_t num_blocks() const { return num_blocks_; }
  std::int32_t num_heads() const { return num_heads_; }
  std::int32_t num_kv_heads() const { return num_kv_heads_; }
  std::int32_t head_dim() const { return head_dim_; }
  std::int32_t block_tokens() const { return block_tokens_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int32_t mean_bits() const { return mean_bits_; }
  bool has(SketchPart parts) const { return (parts_ & parts) == parts; }

  /// Copies into out [num_kv_heads * head_dim]. The part must be there, here and below.
  void mean(std::int32_t layer, std::int32_t block, std::span<float> out) const;
  /// The means of all blocks of a layer: out [num_blocks, num_kv_heads * head_dim].
  void means(std::int32_t layer, std::span<float> out) const;
  void min(std::int32_t layer, std::int32_t block, std::span<float> out) const {
    bound(layer, block, 0, out);
  }
  void max(std::int32_t layer, std::int32_t block, std::span<float> out) const {
    bound(layer, block, 1, out);
  }
  /// Copies into out [num_heads * head_dim].
  void local_query(std::int32_t layer, std::span<float> out) const;
  BlockStats stats(std::int32_t layer, std::int32_t block) const;
  /// Tokens of middle blocks whose alpha lies more than 3 population standard deviations below the
  /// mean of all blocks with a valid alpha, ascending (PauTa criterion). Always empty below 11
  /// blocks.
  std::vector<std::int32_t> pauta_tokens(std::int32_t layer) const;

 private:
  std::size_t width() const {
    return static_cast<std::size_t>(num_kv_heads_) * static_cast<std::size_t>(head_dim_);
  }
  std::size_t at(std::int32_t layer, std::int32_t block) const {
    return static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_blocks_) +
           static_cast<std::size_t>(block);
  }
  void bound(std::int32_t layer, std::int32_t block, int which, std::span<float> out) const;
  void read_mean(std::int32_t layer, std::int32_t block, float* out) const;
  Status check_values() const;

  std::span<const std::byte> mean_scales_, means_, bounds_, query_scales_, queries_, stats_;
  std::uint16_t parts_ = 0;
  std::int32_t num_layers_ = 0, num_kv_heads_ = 0, num_heads_ = 0, head_dim_ = 0, block_tokens_ = 0,
               num_blocks_ = 0, mean_bits_ = 8;
  std::int64_t num_tokens_ = 0;
};

/// Tokens that pauta_tokens() finds in one layer's statistics; blocks [num_blocks]. The definition,
/// for those who have no record yet.
std::vector<std::int32_t> pauta_tokens(std::span<const BlockStats> blocks);

/// Values of a context wherever they are kept: a list of anything that is, or points to something
/// with, bytes. Does not own them.
class ValueList {
 public:
  ValueList() = default;
  template <class Value>
  ValueList(const std::vector<Value>& list)
      : list_(&list), at_([](const void* values, std::size_t i) {
          return bytes_of((*static_cast<const std::vector<Value>*>(values))[i]);
        }) {}
  std::span<const std::byte> operator[](std::size_t i) const { return at_(list_, i); }

 private:
  static std::span<const std::byte> bytes_of(const std::vector<std::byte>& value) { return value; }
  static std::span<const std::byte> bytes_of(const std::shared_ptr<ValueBuffer>& value) {
    return value->payload();
  }
  const void* list_ = nullptr;
  std::span<const std::byte> (*at_)(const void*, std::size_t) = nullptr;
};

struct SketchInput {
  const KvLayout* layout = nullptr;
  std::int32_t num_heads = 0;
  ValueList values;                    ///< [block * num_groups + group]
  std::span<const float> local_query;  ///< [num_layers, num_heads * head_dim]
  std::span<const BlockStats> stats;   ///< [num_layers, num_blocks]
  /// [num_layers, num_blocks, num_kv_heads * head_dim], where they are known; empty: they are made
  /// from the values
  std::span<const float> means{};
  const RopeTable* rope = nullptr;  ///< at least num_tokens positions
  std::uint16_t parts = kSketchDefault;
};
/// Values that are not finite count as 0, so that every record can be read back. Errors:
/// kInvalidArgument.
Result<std::vector<std::byte>> build_sketch(const SketchInput& input);
std::int64_t sketch_bytes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts);

}  // namespace quire
