/// SHA-256, and the 32 bytes it gives.
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

#include "base/index.h"
#include "base/status.h"

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
  std::size_t operator()(const Digest& d) const noexcept {
    std::uint64_t h;
    std::memcpy(&h, d.bytes.data(), sizeof h);
    return to_size(h);
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

}  // namespace quire
