/// This file holds what planning and block keys need to know of a loaded model, without its
/// weights.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "cachestore/key.h"
#include "engine/api/choosing_need.h"
#include "engine/api/device_facts.h"
#include "engine/record/kv_layout.h"
#include "engine/record/stable_layers.h"

namespace quire {

struct EngineFacts {
  KvShape shape;
  std::int32_t num_heads = 0, vocab_size = 0;
  std::int64_t window = 0;  ///< positions a request may use for prompt and answer together
  /// Tokens put before every context that is prefilled alone; their rows are not stored.
  std::vector<std::int32_t> ingest_prefix;
  Digest fingerprint;                   ///< digest of everything that changes KV
  std::int32_t fixed_block_tokens = 0;  ///< 0: by context length
  std::int64_t small_context_tokens = 1024;
  StableLayers stable_layers;   ///< calibrated, or the default
  bool retrieval_head = false;  ///< a retrieval head is loaded
  /// Context window of a draft that can choose rows instead of a retrieval head, on the host, in
  /// the model's tokens. 0: no such draft.
  std::int64_t draft_window = 0;
  DeviceFacts device;                     ///< for cache.decode `auto`
  std::optional<RetrieveShape> choosing;  ///< set if a device computes; none: the host computes

  /// Returns the device memory of each request that shares it; 0: no limit.
  std::int64_t device_part() const { return device.cache_bytes / device.requests; }
};

/// Returns the block size: 16 up to 575 tokens, 32 up to 1151, then 64. This keeps three anchor
/// blocks near an eighth of the context.
std::int32_t block_tokens_for(const EngineFacts& facts, std::int64_t num_tokens);
KvLayout kv_layout(const EngineFacts& facts, std::int64_t num_tokens);

using SaltDigest = std::array<std::uint8_t, 32>;
/// Returns the seed of the block key chain of one tenant and salt.
Digest key_seed(const EngineFacts& facts, std::string_view tenant, const SaltDigest& salt);
ContextKey context_key(const EngineFacts& facts, std::span<const std::int32_t> token_ids,
                       std::string_view tenant, const SaltDigest& salt);
/// Returns the first bytes of each block's key, the block ids shown to clients.
std::vector<std::array<std::uint8_t, 16>> block_ids(const EngineFacts& facts,
                                                    std::span<const std::int32_t> token_ids,
                                                    std::string_view tenant,
                                                    const SaltDigest& salt);

}  // namespace quire
