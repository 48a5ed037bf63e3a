/// This file computes the fingerprint of all that stored KV depends on besides tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cachestore/format/key.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Version that is part of every fingerprint. Raise it if the layout of stored bytes or the
/// numerical results of forward passes change.
inline constexpr std::uint32_t kKvLayoutVersion = 1;
inline constexpr std::uint32_t kKvNumericsVersion = 1;

/// Returns the digest of everything that changes KV. KV of different key spaces never matches,
/// whatever model computed it.
Digest kv_fingerprint(std::string_view key_space, const Model& model, const Tokenizer& tokenizer,
                      std::span<const std::int32_t> ingest_prefix);

}  // namespace quire
