#include "engine/api/facts.h"

#include <algorithm>
#include <cstring>

namespace quire {

std::int32_t block_tokens_for(const EngineFacts& facts, std::int64_t num_tokens) {
  if (facts.fixed_block_tokens > 0) return facts.fixed_block_tokens;
  // A block of n / 24 tokens makes three anchor blocks an eighth of the context. Each size serves
  // the lengths nearest to it (borders at 24 and 48).
  if (num_tokens >= 24 * 48) return 64;
  return num_tokens >= 24 * 24 ? 32 : 16;
}

KvLayout kv_layout(const EngineFacts& facts, std::int64_t num_tokens) {
  return KvLayout(facts.shape, num_tokens, block_tokens_for(facts, num_tokens));
}

Digest key_seed(const EngineFacts& facts, std::string_view tenant, const SaltDigest& salt) {
  Sha256 hash;
  hash.update_field("quire-context-seed");
  hash.update(std::as_bytes(std::span(facts.fingerprint.bytes)));
  hash.update_field(tenant);
  hash.update(std::as_bytes(std::span(salt)));
  return hash.finish();
}

ContextKey context_key(const EngineFacts& facts, std::span<const std::int32_t> token_ids,
                       std::string_view tenant, const SaltDigest& salt) {
  return BlockKeyChain::context_key(
      key_seed(facts, tenant, salt), token_ids,
      block_tokens_for(facts, static_cast<std::int64_t>(token_ids.size())));
}

std::vector<std::array<std::uint8_t, 16>> block_ids(const EngineFacts& facts,
                                                    std::span<const std::int32_t> token_ids,
                                                    std::string_view tenant,
                                                    const SaltDigest& salt) {
  const auto step = static_cast<std::size_t>(
      block_tokens_for(facts, static_cast<std::int64_t>(token_ids.size())));
  BlockKeyChain chain(key_seed(facts, tenant, salt));
  std::vector<std::array<std::uint8_t, 16>> ids;
  for (std::size_t first = 0; first < token_ids.size(); first += step) {
    const Digest key = chain.append(
        token_ids.subspan(first, std::min(step, token_ids.size() - first)));
    ids.emplace_back();
    std::memcpy(ids.back().data(), key.bytes.data(), ids.back().size());
  }
  return ids;
}

}  // namespace quire
