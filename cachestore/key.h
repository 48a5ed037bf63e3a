/// Keys of cached KV: SHA-256 over everything that changes the bytes. A mismatch is a clean miss, never garbage.
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

#include "kernels/base/status.h"

namespace quire {

/// 32 bytes of SHA-256. All zero means "none".
struct Digest {
  std::array<std::byte, 32> bytes{};

  friend bool operator==(const Digest&, const Digest&) = default;
  friend auto operator<=>(const Digest&, const Digest&) = default;
  bool is_zero() const { return *this == Digest{}; }
  /// 64 lower-case hex digits.
  std::string hex() const;
  /// Errors: kInvalidArgument (not exactly 64 hex digits).
  static Result<Digest> from_hex(std::string_view text);
};

/// The bytes are uniform already: the first eight are the hash.
struct DigestHash {
  std::size_t operator()(const Digest& d) const {
    std::uint64_t h;
    std::memcpy(&h, d.bytes.data(), sizeof h);
    return static_cast<std::size_t>(h);
  }
};

/// Incremental SHA-256. Threads: one object, one thread.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  Sha256& update(std::span<const std::byte> bytes);
  Sha256& update(std::string_view text);
  /// Eight little-endian bytes.
  Sha256& update_u64(std::uint64_t value);
  /// Length-prefixed, so that consecutive fields cannot run into each other.
  Sha256& update_field(std::string_view text);
  /// Ends the digest; the object starts anew.
  Digest finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

Digest sha256(std::string_view text);
Digest sha256(std::span<const std::byte> bytes);

/// Names the KV of one whole context (token ids prefilled alone), cut into blocks of one size.
using ContextKey = Digest;

/// Chained block keys of one context: key_i = SHA-256(key_{i-1} || token ids of block i), key_{-1} = seed.
/// The seed digests everything else that changes KV: weights, tokenizer, dtype, RoPE settings, layout version, numerics
/// version, ingest prefix, tenant and salt. Equal token prefixes under one seed give equal keys.
class BlockKeyChain {
 public:
  explicit BlockKeyChain(const Digest& seed) : last_(seed) {}

  /// Appends one block (1 to block_tokens ids; only the last block may be short) and returns its key.
  Digest append(std::span<const std::int32_t> token_ids);
  const Digest& last() const { return last_; }
  std::int64_t num_tokens() const { return num_tokens_; }

  /// The whole context's key: last block key, token count and block size together.
  ContextKey context_key(std::int32_t block_tokens) const;
  /// The same in one call.
  static ContextKey context_key(const Digest& seed, std::span<const std::int32_t> token_ids, std::int32_t block_tokens);

 private:
  Digest last_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace quire
