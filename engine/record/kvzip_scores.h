/// This file defines the record of how much a context's own repetition attends to each of its
/// tokens (KVzip, Kim et al., arXiv 2505.23416). Such scores know no question, so they
/// can be made at ingest and rank the KV of a document for any.
///
/// The record is little-endian, checksummed by the store, and sketch 3 of a segment.
/// - Header, 24 bytes: u32 magic "QKZ1", u16 version, u16 zero, u32 num_layers, u32 num_kv_heads,
///   u64 num_tokens.
/// - u8 codes [num_layers][num_kv_heads][num_tokens]. Code c > 0 stands for attention of
///   2^((c - 255) / 10), to within a twentieth of an octave; 0 for less than 2^-25.4.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"

namespace quire {

inline constexpr std::uint32_t kKvzipScoresIndex = 3;  ///< index among a segment's sketches

struct KvzipScoresShape {
  std::int32_t num_layers = 0, num_kv_heads = 0;
  std::int64_t num_tokens = 0;
  bool operator==(const KvzipScoresShape&) const = default;
};

/// A record, or a view of one: it points into the bytes it was parsed from, which must outlive it
/// and may have any alignment.
class KvzipScoresView {
 public:
  static constexpr std::size_t kHeaderBytes = 24;

  /// Errors: kCorruption with the reason, also for a record of another version.
  static Result<KvzipScoresView> parse(std::span<const std::byte> record) {
    if (record.size() < kHeaderBytes) return Status::corruption("shorter than its header");
    KvzipScoresView view;
    std::uint32_t layers = 0, heads = 0;
    std::uint64_t tokens = 0;
    std::memcpy(&layers, record.data() + 8, sizeof layers);
    std::memcpy(&heads, record.data() + 12, sizeof heads);
    std::memcpy(&tokens, record.data() + 16, sizeof tokens);
    if (std::memcmp(record.data(), kMagic, sizeof kMagic) != 0)
      return Status::corruption("not a record of this kind and version");
    const std::uint64_t codes = record.size() - kHeaderBytes;
    if (layers == 0 || heads == 0 || tokens == 0 || layers > 4096 || heads > 4096 ||
        codes % (std::uint64_t{layers} * heads) != 0 ||
        codes / (std::uint64_t{layers} * heads) != tokens)
      return Status::corruption("its length does not fit its header");
    view.shape_ = {static_cast<std::int32_t>(layers), static_cast<std::int32_t>(heads),
                   static_cast<std::int64_t>(tokens)};
    view.codes_ = record.subspan(kHeaderBytes);
    return view;
  }

  const KvzipScoresShape& shape() const { return shape_; }
  /// Returns the most attention that a token of the repetition pays to this token.
  float score(std::int32_t layer, std::int32_t kv_head, std::int64_t token) const {
    const std::int64_t code_index = (std::int64_t{layer} * shape_.num_kv_heads + kv_head) *
                                        shape_.num_tokens +
                                    token;
    const auto code = static_cast<int>(codes_[at(code_index)]);
    return code == 0 ? 0.0f : std::exp2(static_cast<float>(code - 255) / 10);
  }

  /// Returns the code of an attention weight.
  static std::byte code_of(float attention) {
    if (!(attention > 0)) return std::byte{0};
    const float code = 255 + std::round(10 * std::log2(attention));
    return static_cast<std::byte>(std::clamp(code, 0.0f, 255.0f));
  }
  /// Returns the header of a record; its codes follow.
  static std::vector<std::byte> header(const KvzipScoresShape& shape) {
    std::vector<std::byte> record(kHeaderBytes);
    const auto layers = static_cast<std::uint32_t>(shape.num_layers),
               heads = static_cast<std::uint32_t>(shape.num_kv_heads);
    const auto tokens = static_cast<std::uint64_t>(shape.num_tokens);
    std::memcpy(record.data(), kMagic, sizeof kMagic);
    std::memcpy(record.data() + 8, &layers, sizeof layers);
    std::memcpy(record.data() + 12, &heads, sizeof heads);
    std::memcpy(record.data() + 16, &tokens, sizeof tokens);
    return record;
  }

 private:
  static constexpr unsigned char kMagic[8] = {'Q', 'K', 'Z', '1', 1, 0, 0, 0};
  KvzipScoresShape shape_;
  std::span<const std::byte> codes_;
};

}  // namespace quire
