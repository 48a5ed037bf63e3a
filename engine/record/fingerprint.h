/// What stored KV depends on besides tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cachestore/key.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Part of every fingerprint: raise it when stored bytes change their meaning (layout) or forward
/// passes their numbers.
inline constexpr std::uint32_t kKvLayoutVersion = 1;
inline constexpr std::uint32_t kKvNumericsVersion = 1;

/// Everything that changes KV (architecture, "Block key"). KV of different key spaces is never
/// taken for one another, whatever model computed it.
Digest kv_fingerprint(std::string_view key_space, const Model& model, const Tokenizer& tokenizer,
                      std::span<const std::int32_t> ingest_prefix);

}  // namespace quire
