/// API keys decide which operations a caller may use, and in which namespaces.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"

namespace quire {

enum class Scope : unsigned char { kNone, kRead, kWrite, kQuery, kAdmin };
std::string_view scope_name(Scope scope);

/// ApiKey is one key, of which only the SHA-256 is kept. The namespace "*" stands for any.
struct ApiKey {
  std::string name;
  Digest digest;
  std::vector<Scope> scopes;
  std::vector<std::string> namespaces;
  std::int64_t requests_per_minute = -1, tokens_per_minute = -1;  ///< -1: the service's default

  bool allows(Scope scope) const;  ///< admin allows everything
  bool allows_namespace(std::string_view ns) const;
  bool allows_any_namespace() const;  ///< its namespaces have "*"
};

/// KeyRing is an immutable set of keys. A reload makes a new one.
class KeyRing {
 public:
  /// Returns a ring without keys, which allows everything to every caller. It is for loopback, or
  /// for auth.allow_insecure.
  static std::shared_ptr<const KeyRing> open();
  /// Parses TOML: [[keys]] with name, sha256 (64 hex digits), scopes and namespaces, and optionally
  /// requests_per_minute and tokens_per_minute. Errors: kInvalidArgument naming the file, the key
  /// and the fix.
  static Result<std::shared_ptr<const KeyRing>> parse(std::string_view toml,
                                                      const std::string& file_name);
  static Result<std::shared_ptr<const KeyRing>> load(const std::string& path);

  bool is_open() const { return open_; }
  std::size_t size() const { return keys_.size(); }
  /// Returns the key; null: it is unknown. Every key is compared in constant time.
  const ApiKey* find(std::string_view secret) const;
  const ApiKey& anonymous() const { return anonymous_; }

 private:
  bool open_ = false;
  std::vector<ApiKey> keys_;
  ApiKey anonymous_;
};

/// Returns the key in `Authorization: Bearer`, `api-key` or `x-api-key`; empty: there is none.
class Headers;
std::string presented_key(const Headers& headers);

bool is_loopback(std::string_view host);

/// Returns a new random secret ("qk_" and 40 letters and digits) from the system's random source.
/// Errors: kIo.
Result<std::string> make_api_secret();

}  // namespace quire
