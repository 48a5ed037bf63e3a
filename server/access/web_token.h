/// Reads JSON Web Tokens (RFC 7519) and checks their signatures by the issuer's public keys (RFC
/// 7517). RS256 and ES256 are taken, and no other algorithm.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "server/access/auth.h"

namespace quire {

inline constexpr std::size_t kMaxTokenBytes = 8 << 10;

/// WebToken is a token whose parts are well formed. Nothing of it is to be believed before
/// WebKeys::verify().
struct WebToken {
  std::string algorithm;  ///< RS256 or ES256
  std::string key_id;     ///< empty: it names none
  boost::json::object claims;
  std::string signed_text;  ///< what the signature covers
  std::string signature;    ///< bytes
};

/// Returns whether a secret is a token rather than an API key: three parts with dots between, the
/// first of which begins as base64url of a JSON object does.
bool looks_like_token(std::string_view secret);

/// Reads a token. Errors: kInvalidArgument, in words for the caller: it is too long or malformed,
/// or its algorithm is another one.
Result<WebToken> parse_web_token(std::string_view text);

/// WebKeys is an immutable set of public keys. Threads: any.
class WebKeys {
 public:
  /// Reads a JWKS document. Keys of other kinds and uses are left out. Errors: kInvalidArgument (it
  /// is malformed, or holds no RSA key of 2048 to 8192 bits and no key on P-256).
  static Result<std::shared_ptr<const WebKeys>> parse(std::string_view jwks);
  ~WebKeys();
  WebKeys(const WebKeys&) = delete;
  WebKeys& operator=(const WebKeys&) = delete;

  std::size_t size() const;
  /// Checks the signature by the key that the token names. A token without a key id is checked by
  /// the only key for its algorithm. Errors: kNotFound (there is no such key), kInvalidArgument
  /// (the signature is wrong, or the key is for another algorithm).
  Status verify(const WebToken& token) const;

 private:
  struct Keys;
  explicit WebKeys(std::unique_ptr<Keys> keys);
  const std::unique_ptr<Keys> keys_;
};

/// What a token must say, and which of its claims say what the caller may do.
struct TokenRules {
  std::string issuer, audience;
  std::int64_t clock_skew_seconds = 60;
  std::string namespace_claim = "namespaces";
  std::string scope_claim = "scope";
  std::string scope_prefix;  ///< stands before read, write, query and admin in that claim
};

/// Returns what the caller of a verified token may do, under the name "token:" and its subject.
/// Errors: kInvalidArgument, in words for the caller (another issuer or audience, expired, not yet
/// valid, no subject, no namespace).
Result<ApiKey> granted_by(const WebToken& token, const TokenRules& rules,
                          std::int64_t unix_seconds);

}  // namespace quire
