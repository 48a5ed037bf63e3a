/// The sketch of one context: what selection needs and nothing more (architecture §4; algorithms §2, §3).
///
/// Record, little-endian, checksummed by the store (engine/README.md, "Sketch record"):
///   header, 48 bytes: u32 magic "QSK1", u16 version, u16 parts, u32 num_layers, num_kv_heads, num_heads, head_dim, block_tokens,
///   num_blocks, u64 num_tokens, u64 zero
///   kMeans       bf16 [num_layers][num_blocks][num_kv_heads][head_dim]      mean of rot(k_t, t), t counted from the context's start
///   kMinMax      bf16 [num_layers][num_blocks][2][num_kv_heads][head_dim]   channel-wise bounds of the same keys, rounded outwards
///   kLocalQuery  f32  [num_layers][num_heads][head_dim]                     mean raw q over the local (last two) blocks
/// Parts not in `parts` are left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/pipeline/kv_layout.h"
#include "kernels/base/status.h"
#include "kernels/rope.h"

namespace quire {

enum SketchPart : std::uint16_t { kSketchMeans = 1, kSketchMinMax = 2, kSketchLocalQuery = 4, kSketchAll = 7 };
inline constexpr std::uint16_t kSketchVersion = 1;

/// A parsed record; points into the bytes it was parsed from, which must stay. Any alignment.
class SketchView {
 public:
  /// Checks every size against the record's length. Errors: kCorruption, saying which field.
  static Result<SketchView> parse(std::span<const std::byte> record);

  std::int32_t num_layers() const { return num_layers_; }
  std::int32_t num_blocks() const { return num_blocks_; }
  std::int32_t num_heads() const { return num_heads_; }
  std::int32_t num_kv_heads() const { return num_kv_heads_; }
  std::int32_t head_dim() const { return head_dim_; }
  std::int32_t block_tokens() const { return block_tokens_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  bool has(SketchPart part) const { return (parts_ & part) != 0; }

  /// Copies into out [num_kv_heads * head_dim]. The part must be there.
  void mean(std::int32_t layer, std::int32_t block, std::span<float> out) const;
  void min(std::int32_t layer, std::int32_t block, std::span<float> out) const { bound(layer, block, 0, out); }
  void max(std::int32_t layer, std::int32_t block, std::span<float> out) const { bound(layer, block, 1, out); }
  /// Copies into out [num_heads * head_dim].
  void local_query(std::int32_t layer, std::span<float> out) const;

 private:
  void bound(std::int32_t layer, std::int32_t block, int which, std::span<float> out) const;
  std::span<const std::byte> means_, bounds_, queries_;
  std::uint16_t parts_ = 0;
  std::int32_t num_layers_ = 0, num_kv_heads_ = 0, num_heads_ = 0, head_dim_ = 0, block_tokens_ = 0, num_blocks_ = 0;
  std::int64_t num_tokens_ = 0;
};

struct SketchInput {
  const KvLayout* layout = nullptr;
  std::int32_t num_heads = 0;
  std::span<const std::vector<std::byte>> values;  ///< [block * num_groups + group]
  std::span<const float> local_query;              ///< [num_layers, num_heads * head_dim]
  const RopeTable* rope = nullptr;                 ///< at least num_tokens positions
  std::uint16_t parts = kSketchAll;
};
Result<std::vector<std::byte>> build_sketch(const SketchInput& input);
std::int64_t sketch_bytes(const KvLayout& layout, std::int32_t num_heads, std::uint16_t parts);

}  // namespace quire
