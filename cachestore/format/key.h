/// This file declares keys of cached KV: SHA-256 over everything that changes the bytes. A mismatch
/// is a clean miss, never wrong data.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/sha256.h"

namespace quire {

/// Names the KV of one whole context (its token ids and those of its left context), split into
/// blocks of one size.
using ContextKey = Digest;

/// Computes chained block keys of one context: key_i = SHA-256(key_{i-1} || token ids of block i),
/// key_{-1} = seed. The seed digests everything else that changes KV: weights, tokenizer, dtype,
/// RoPE settings, layout version, numerics version, ingest prefix, tenant and salt. Equal token
/// prefixes under one seed give equal keys.
class BlockKeyChain {
 public:
  explicit BlockKeyChain(const Digest& seed) : last_(seed) {}

  /// Appends one block and returns its key. It has 1 to block_tokens ids; only the last block may
  /// be short.
  Digest append(std::span<const std::int32_t> token_ids);
  const Digest& last() const { return last_; }
  std::int64_t num_tokens() const { return num_tokens_; }

  /// Returns the key of the whole context, from last block key, token count and block size.
  ContextKey context_key(std::int32_t block_tokens) const;
  /// Computes the same key in one call.
  static ContextKey context_key(const Digest& seed, std::span<const std::int32_t> token_ids,
                                std::int32_t block_tokens);

 private:
  Digest last_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace quire
