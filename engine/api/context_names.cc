#include "engine/api/context_names.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"

namespace quire {

std::int32_t ContextNames::block_tokens_for(std::int64_t num_tokens) const {
  if (fixed_block_tokens_ > 0) return fixed_block_tokens_;
  // A block of n / 24 tokens makes three anchor blocks an eighth of the context. Each size serves
  // the lengths nearest to it (borders at 24 and 48).
  if (num_tokens >= 24 * 48) return 64;
  return num_tokens >= 24 * 24 ? 32 : 16;
}

Digest ContextNames::key_seed(std::string_view tenant, const SaltDigest& salt,
                              LeftContext left) const {
  Sha256 hash;
  hash.update_field("quire-context-seed");
  hash.update(std::as_bytes(std::span(fingerprint_.bytes)));
  hash.update_field(tenant);
  hash.update(std::as_bytes(std::span(salt)));
  if (layers_per_value_ > 0) {
    hash.update_field("layers-per-value");
    hash.update_u64(to_size(layers_per_value_));
  }
  if (!left.empty()) {
    hash.update_field("left-context");
    hash.update_u64(left.size()).update(std::as_bytes(left));
  }
  return hash.finish();
}

ContextKey ContextNames::context_key(std::span<const std::int32_t> token_ids,
                                     std::string_view tenant, const SaltDigest& salt,
                                     LeftContext left) const {
  return BlockKeyChain::context_key(key_seed(tenant, salt, left), token_ids,
                                    block_tokens_for(count_of(token_ids)));
}

std::vector<BlockId> ContextNames::block_ids(std::span<const std::int32_t> token_ids,
                                             std::string_view tenant, const SaltDigest& salt,
                                             LeftContext left) const {
  return named(key_seed(tenant, salt, left), token_ids).block_ids;
}

ContextNames::Named ContextNames::named(const Digest& seed,
                                        std::span<const std::int32_t> token_ids) const {
  const std::int32_t block_tokens = block_tokens_for(count_of(token_ids));
  const auto step = to_size(block_tokens);
  BlockKeyChain chain(seed);
  Named out;
  for (std::size_t first = 0; first < token_ids.size(); first += step) {
    const Digest key = chain.append(
        token_ids.subspan(first, std::min(step, token_ids.size() - first)));
    out.block_ids.emplace_back();
    std::memcpy(out.block_ids.back().data(), key.bytes.data(), out.block_ids.back().size());
  }
  out.key = chain.context_key(block_tokens);
  return out;
}

}  // namespace quire
