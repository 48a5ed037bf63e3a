/// This file defines the sketch of one context: the summary of its KV that selection needs.
///
/// The record is little-endian and checksummed by the store (docs/formats.md, "Sketches of a
/// segment"). Parts that are not in `parts` are left out.
/// - Header, 48 bytes: u32 magic "QSK1", u16 version, u16 parts, u32 num_layers, num_kv_heads,
///   num_heads, head_dim, block_tokens, num_blocks, u64 num_tokens, u32 mean_bits, u32 zero.
/// - kSketchMeans, mean of rot(k_t, t) with t counted from the context's start: bf16 scales
///   [num_layers][num_kv_heads][head_dim], then integers of mean_bits bits
///   [num_layers][num_blocks][num_kv_heads][head_dim]. A value is integer * scale of its channel.
/// - kSketchMinMax, channel-wise bounds of these keys, rounded outwards: bf16
///   [num_layers][num_blocks][2][num_kv_heads][head_dim].
/// - kSketchLocalQuery, mean raw q over the local (last two) blocks: bf16 scales
///   [num_layers][num_heads], then i8 [num_layers][num_heads][head_dim].
/// - kSketchStats, each [num_layers][num_blocks]: f32 alpha, f32 sustained, u16 index of the
///   representative within its block.
///
/// The record of 400 tokens in blocks of 16 stays within 2 % of a 16-bit KV for every supported
/// model family. Bounds alone would take 6 % and only page-wise retrievers read them, so they are
/// written only on request. Scales are per channel, because key channels differ in magnitude (KIVI,
/// arXiv 2402.02750, section 3). The integers of the means have 8 bits if the record then stays
/// within 2 %, else 6.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "cachestore/format/value_buffer.h"
#include "engine/record/kv_layout.h"
#include "kernels/rows/rope.h"

namespace quire {

enum SketchPart : std::uint16_t {
  kSketchMeans = 1,
  kSketchMinMax = 2,
  kSketchLocalQuery = 4,
  kSketchStats = 8,
  kSketchDefault = kSketchMeans | kSketchLocalQuery | kSketchStats,  ///< parts written at ingest
  kSketchAll = 15
};
inline constexpr std::uint16_t kSketchVersion = 2;
inline constexpr std::uint32_t kSketchIndex = 0;  ///< index among a segment's sketches
/// Largest share of the KV's size that a record may take.
inline constexpr double kSketchShare = 0.02;

/// Attention statistics of one block in one layer, taken from its representative: the token with
/// the highest sustained attention.
struct BlockStats {
  /// Exponent by which attention decays with distance; smaller is more important. NaN: no valid
  /// fit, ranked last.
  float alpha;
  float sustained;              ///< mean attention from later tokens; smaller is less important
  std::int32_t representative;  ///< token index within the context
};

/// A parsed record, which points into the bytes it was parsed from; they must outlive it and may
/// have any alignment. Only pauta_tokens() allocates.
class SketchView {
 public:
  /// Parses a record and checks every size against its length and every stored index. Errors:
  /// kCorruption, naming the field, also for a record of another version; both are misses that are
  /// rebuilt.
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

  /// Copies one block's mean into out, [num_kv_heads * head_dim]. The record must have the part
  /// that this or any accessor below reads.
  void mean(std::int32_t layer, std::int32_t block, std::span<float> out) const;
  /// Copies the means of all blocks of a layer into out, [num_blocks, num_kv_heads * head_dim].
  void means(std::int32_t layer, std::span<float> out) const;
  void min(std::int32_t layer, std::int32_t block, std::span<float> out) const {
    bound(layer, block, 0, out);
  }
  void max(std::int32_t layer, std::int32_t block, std::span<float> out) const {
    bound(layer, block, 1, out);
  }
  /// Copies the local query into out, [num_heads * head_dim].
  void local_query(std::int32_t layer, std::span<float> out) const;
  BlockStats stats(std::int32_t layer, std::int32_t block) const;
  /// Returns the tokens of middle blocks whose alpha lies more than 3 population standard
  /// deviations below the mean of all valid alphas, ascending (PauTa criterion). It is always empty
  /// below 11 blocks.
  std::vector<std::int32_t> pauta_tokens(std::int32_t layer) const;

 private:
  std::size_t width() const { return to_size(num_kv_heads_) * to_size(head_dim_); }
  std::size_t at(std::int32_t layer, std::int32_t block) const {
    return to_size(layer) * to_size(num_blocks_) + to_size(block);
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

/// Applies the PauTa criterion to one layer's statistics, [num_blocks], without a record; it
/// defines SketchView::pauta_tokens().
std::vector<std::int32_t> pauta_tokens(std::span<const BlockStats> blocks);

/// A non-owning list of a context's values, over any vector of bytes or of pointers to value
/// buffers.
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
  /// Block means, [num_layers, num_blocks, num_kv_heads * head_dim], if known; empty: they are
  /// computed from the values.
  std::span<const float> means{};
  const RopeTable* rope = nullptr;  ///< at least num_tokens positions
  std::uint16_t parts = kSketchDefault;
};
/// Builds a record; values that are not finite count as 0, so that every record can be parsed.
/// Errors: kInvalidArgument.
Result<std::vector<std::byte>> build_sketch(const SketchInput& input);
std::int64_t sketch_bytes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts);

}  // namespace quire
