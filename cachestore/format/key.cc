#include "cachestore/format/key.h"

#include <algorithm>

#include "base/index.h"

namespace quire {

Digest BlockKeyChain::append(std::span<const std::int32_t> token_ids) {
  Sha256 h;
  h.update(last_.bytes).update_u64(token_ids.size());
  std::array<std::byte, 4 * 64> chunk;
  for (std::size_t i = 0; i < token_ids.size();) {
    std::size_t n = 0;
    for (; n < 64 && i < token_ids.size(); ++n, ++i) {
      const auto id = static_cast<std::uint32_t>(token_ids[i]);
      for (std::size_t k = 0; k < 4; ++k) chunk[4 * n + k] = static_cast<std::byte>(id >> (8 * k));
    }
    h.update(std::span<const std::byte>(chunk.data(), 4 * n));
  }
  num_tokens_ += count_of(token_ids);
  last_ = h.finish();
  return last_;
}

ContextKey BlockKeyChain::context_key(std::int32_t block_tokens) const {
  return Sha256()
      .update("quire context")
      .update(last_.bytes)
      .update_u64(static_cast<std::uint64_t>(num_tokens_))
      .update_u64(static_cast<std::uint64_t>(block_tokens))
      .finish();
}

ContextKey BlockKeyChain::context_key(const Digest& seed, std::span<const std::int32_t> token_ids,
                                      std::int32_t block_tokens) {
  BlockKeyChain chain(seed);
  const auto step = to_size(block_tokens > 0 ? block_tokens : 1);
  for (std::size_t i = 0; i < token_ids.size(); i += step)
    chain.append(token_ids.subspan(i, std::min(step, token_ids.size() - i)));
  return chain.context_key(block_tokens);
}

}  // namespace quire
