/// This file declares the encryption of KV in shared tiers, with a key for each namespace.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/record.h"
#include "cachestore/format/segment.h"

namespace quire {

/// Keys of AES-256-GCM by namespace. Threads: any, once all keys are added.
class RemoteKeys {
 public:
  static constexpr std::size_t kKeyBytes = 32;
  /// Names a key without telling it: the first 8 bytes of SHA-256 of a field and the key. Never 0.
  using KeyId = std::uint64_t;
  struct Key {
    std::array<std::uint8_t, kKeyBytes> bytes{};
    KeyId id = 0;
  };
  /// The namespace that stands for all that have no key of their own.
  static constexpr std::string_view kOthers = "*";

  /// Adds the key of a namespace: 64 hexadecimal digits, with white space around them. Errors:
  /// kInvalidArgument; the message never shows the key.
  Status add(const std::string& ns, std::string_view hex);
  /// Returns the key of a namespace; null: its values are not encrypted.
  const Key* find(std::string_view ns) const;
  std::size_t size() const { return keys_.size(); }

 private:
  std::map<std::string, Key, std::less<>> keys_;
};

/// Bytes that encryption adds to a value: nonce and tag.
inline constexpr std::size_t kSealNonceBytes = 12, kSealTagBytes = 16,
                             kSealBytes = kSealNonceBytes + kSealTagBytes;

/// Encrypts a stored value with a key of its context, which is derived from the namespace's, under
/// a random nonce: nonce, ciphertext, tag. So a nonce has to differ from those of one context
/// alone, however many values a namespace has. `context` and `name` are authenticated with it, so
/// that it opens nowhere else.
std::string seal_value(const RemoteKeys::Key& key, const ContextKey& context,
                       const record::ValueName& name, std::string_view stored);
/// Decrypts what seal_value() made. Errors: kCorruption (another key, or bytes that were changed).
Result<std::string> open_value(const RemoteKeys::Key& key, const ContextKey& context,
                               const record::ValueName& name, std::string_view sealed);

}  // namespace quire
