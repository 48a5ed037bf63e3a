/// This file names contexts and their blocks: the keys under which KV is stored, and the block ids
/// that clients see.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/format/key.h"

namespace quire {

using SaltDigest = std::array<std::uint8_t, 32>;
/// The tokens right before a context that its KV attends to (PrefillRequest::left_context).
using LeftContext = std::span<const std::int32_t>;
/// The first bytes of a block's key.
using BlockId = std::array<std::uint8_t, 16>;

/// A value made from the loaded model. Equal values give equal names, and no call can fail.
/// Threads: any.
class ContextNames {
 public:
  ContextNames() = default;
  /// `fingerprint` is the digest of everything that changes KV. `fixed_block_tokens` is the block
  /// size of every context, in tokens; 0: by context length. `layers_per_value` is how many layers
  /// share a stored value (KvLayout); 0: as many as fit. Both change the names.
  explicit ContextNames(const Digest& fingerprint, std::int32_t fixed_block_tokens = 0,
                        std::int32_t layers_per_value = 0)
      : fingerprint_(fingerprint),
        fixed_block_tokens_(fixed_block_tokens),
        layers_per_value_(layers_per_value) {}

  const Digest& fingerprint() const { return fingerprint_; }
  /// Returns the fingerprint as it is recorded with each segment and shown to users.
  std::string fingerprint_text() const { return "m-" + fingerprint_.hex().substr(0, 8); }
  std::int32_t layers_per_value() const { return layers_per_value_; }
  /// Returns the block size, in tokens, for a context of `num_tokens` tokens: 16 up to 575 tokens,
  /// 32 up to 1151, then 64. This keeps three anchor blocks near an eighth of the context.
  std::int32_t block_tokens_for(std::int64_t num_tokens) const;
  /// Returns the seed of the block key chain of one tenant, salt and left context.
  Digest key_seed(std::string_view tenant, const SaltDigest& salt, LeftContext left = {}) const;
  /// Returns the key under which these tokens are, or would be, stored. KV behind another left
  /// context is other KV, so it has another key.
  ContextKey context_key(std::span<const std::int32_t> token_ids, std::string_view tenant,
                         const SaltDigest& salt, LeftContext left = {}) const;
  /// Returns the id of each block of these tokens, in order, as in PlannedBlock::id.
  std::vector<BlockId> block_ids(std::span<const std::int32_t> token_ids, std::string_view tenant,
                                 const SaltDigest& salt, LeftContext left = {}) const;
  /// Returns context_key() and block_ids() of tokens whose key_seed() is `seed`.
  struct Named {
    ContextKey key;
    std::vector<BlockId> block_ids;
  };
  Named named(const Digest& seed, std::span<const std::int32_t> token_ids) const;

 private:
  Digest fingerprint_;
  std::int32_t fixed_block_tokens_ = 0, layers_per_value_ = 0;
};

}  // namespace quire
