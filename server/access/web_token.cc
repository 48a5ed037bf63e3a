#include "server/access/web_token.h"

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <cmath>
#include <optional>
#include <vector>

#include "base/json_object.h"
#include "base/json_parse.h"
#include "server/config/namespace_name.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostKeys = 64, kMostSubjectBytes = 256, kMostNamespaces = 64;
constexpr int kLeastRsaBits = 2048, kMostRsaBits = 8192;
constexpr std::size_t kP256Bytes = 32;

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using PublicKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Number = std::unique_ptr<BIGNUM, Freed<BN_free>>;

Status refused(const std::string& why) { return Status::invalid("token", why); }

/// Decodes base64url without padding; none: it is no such text.
std::optional<std::string> from_base64url(std::string_view text) {
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    std::uint32_t value = 0;
    if (c >= 'A' && c <= 'Z')
      value = static_cast<std::uint32_t>(c - 'A');
    else if (c >= 'a' && c <= 'z')
      value = static_cast<std::uint32_t>(c - 'a') + 26;
    else if (c >= '0' && c <= '9')
      value = static_cast<std::uint32_t>(c - '0') + 52;
    else if (c == '-')
      value = 62;
    else if (c == '_')
      value = 63;
    else
      return std::nullopt;
    bits = (bits << 6) | value;
    have += 6;
    if (have < 8) continue;
    have -= 8;
    out.push_back(static_cast<char>((bits >> have) & 0xff));
  }
  // One letter alone is no byte, and what is left over must be zero: one text for each value.
  if (have == 6 || (bits & ((1u << have) - 1)) != 0) return std::nullopt;
  return out;
}

/// Reads a part of a token that is an object; none: it is no base64url or no JSON object.
std::optional<json::object> object_part(std::string_view part) {
  const auto text = from_base64url(part);
  if (!text) return std::nullopt;
  auto value = parse_json(*text, kOutsideJson);
  if (!value.ok() || !value->is_object()) return std::nullopt;
  return std::move(value->as_object());
}

std::string text_member(const json::object& object, std::string_view name) {
  const json::value* v = object.if_contains(name);
  return v && v->is_string() ? std::string(v->get_string()) : std::string();
}

std::optional<double> time_member(const json::object& object, std::string_view name) {
  const json::value* v = object.if_contains(name);
  if (!v || !v->is_number()) return std::nullopt;
  const double t = v->to_number<double>();
  return std::isfinite(t) ? std::optional(t) : std::nullopt;
}

/// Returns the texts of a claim that is a text or an array of texts. A text may hold several with
/// spaces between.
std::vector<std::string> words_of(const json::value* claim) {
  std::vector<std::string> out;
  const auto add = [&out](std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(' ', at), text.size());
      if (end > at) out.emplace_back(text.substr(at, end - at));
      at = end + 1;
    }
  };
  if (claim && claim->is_string()) add(claim->get_string());
  if (claim && claim->is_array())
    for (const json::value& one : claim->get_array())
      if (one.is_string()) add(one.get_string());
  return out;
}

Number number_of(const std::string& bytes) {
  return Number(BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                          static_cast<int>(bytes.size()), nullptr));
}

PublicKey make_key(const char* type, OSSL_PARAM_BLD* builder) {
  const std::unique_ptr<OSSL_PARAM, Freed<OSSL_PARAM_free>> params(
      OSSL_PARAM_BLD_to_param(builder));
  const std::unique_ptr<EVP_PKEY_CTX, Freed<EVP_PKEY_CTX_free>> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !context || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1)
    return nullptr;
  return PublicKey(key);
}

PublicKey rsa_key(const json::object& jwk) {
  const auto n = from_base64url(text_member(jwk, "n")), e = from_base64url(text_member(jwk, "e"));
  if (!n || !e || n->empty() || n->size() > kMostRsaBits / 8 || e->empty() || e->size() > 8)
    return nullptr;
  const Number modulus = number_of(*n), exponent = number_of(*e);
  const std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>> builder(OSSL_PARAM_BLD_new());
  if (!modulus || !exponent || !builder || BN_num_bits(modulus.get()) < kLeastRsaBits ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_N, modulus.get()) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_RSA_E, exponent.get()) != 1)
    return nullptr;
  return make_key("RSA", builder.get());
}

PublicKey p256_key(const json::object& jwk) {
  const auto x = from_base64url(text_member(jwk, "x")), y = from_base64url(text_member(jwk, "y"));
  if (text_member(jwk, "crv") != "P-256" || !x || !y || x->size() != kP256Bytes ||
      y->size() != kP256Bytes)
    return nullptr;
  const std::string point = "\x04" + *x + *y;  // uncompressed
  const std::unique_ptr<OSSL_PARAM_BLD, Freed<OSSL_PARAM_BLD_free>> builder(OSSL_PARAM_BLD_new());
  if (!builder ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0) !=
          1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                       point.size()) != 1)
    return nullptr;
  return make_key("EC", builder.get());
}

/// Returns the DER form of an ES256 signature, which is two numbers of 32 bytes; empty: it is none.
std::string der_signature(const std::string& raw) {
  if (raw.size() != 2 * kP256Bytes) return {};
  Number r = number_of(raw.substr(0, kP256Bytes)), s = number_of(raw.substr(kP256Bytes));
  const std::unique_ptr<ECDSA_SIG, Freed<ECDSA_SIG_free>> signature(ECDSA_SIG_new());
  if (!r || !s || !signature || ECDSA_SIG_set0(signature.get(), r.get(), s.get()) != 1) return {};
  (void)r.release();  // the signature owns both
  (void)s.release();
  const int bytes = i2d_ECDSA_SIG(signature.get(), nullptr);
  if (bytes <= 0) return {};
  std::string out(static_cast<std::size_t>(bytes), '\0');
  auto* at = reinterpret_cast<unsigned char*>(out.data());
  return i2d_ECDSA_SIG(signature.get(), &at) == bytes ? out : std::string();
}

bool signature_holds(EVP_PKEY* key, const std::string& text, const std::string& signature) {
  const std::unique_ptr<EVP_MD_CTX, Freed<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  return context && !signature.empty() &&
         EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
         EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                          signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                          text.size()) == 1;
}

}  // namespace

bool looks_like_token(std::string_view secret) {
  return secret.starts_with("eyJ") && std::ranges::count(secret, '.') == 2;
}

Result<WebToken> parse_web_token(std::string_view text) {
  if (text.size() > kMaxTokenBytes)
    return refused("the token has " + std::to_string(text.size()) + " bytes; at most " +
                   std::to_string(kMaxTokenBytes) + " are taken");
  const auto first = text.find('.'), second = text.find('.', first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos ||
      text.find('.', second + 1) != std::string_view::npos)
    return refused("the token does not have three parts with dots between");
  const auto header = object_part(text.substr(0, first));
  if (!header) return refused("the token's header is no JSON object in base64url");
  WebToken out;
  out.algorithm = text_member(*header, "alg");
  if (out.algorithm != "RS256" && out.algorithm != "ES256")
    return refused("the token is signed by '" + out.algorithm.substr(0, 32) +
                   "'; only RS256 and ES256 are taken");
  if (header->contains("crit"))
    return refused("the token's header has extensions (crit), of which none is known");
  out.key_id = text_member(*header, "kid");
  auto claims = object_part(text.substr(first + 1, second - first - 1));
  if (!claims) return refused("the token's claims are no JSON object in base64url");
  out.claims = std::move(*claims);
  auto signature = from_base64url(text.substr(second + 1));
  if (!signature || signature->empty()) return refused("the token's signature is no base64url");
  out.signature = std::move(*signature);
  out.signed_text = text.substr(0, second);
  return out;
}

struct WebKeys::Keys {
  struct One {
    std::string id, algorithm;
    PublicKey key;
  };
  std::vector<One> all;
};

WebKeys::WebKeys(std::unique_ptr<Keys> keys) : keys_(std::move(keys)) {}
WebKeys::~WebKeys() = default;
std::size_t WebKeys::size() const { return keys_->all.size(); }

Result<std::shared_ptr<const WebKeys>> WebKeys::parse(std::string_view jwks) {
  const auto object = parse_json_object("JWKS", jwks);
  if (!object.ok()) return refused("the keys are no JSON object: " + object.status().message());
  const json::array* list = array_at(*object, "keys");
  if (!list) return refused("the keys have no array 'keys'");
  auto keys = std::make_unique<Keys>();
  for (const json::value& item : *list) {
    const json::object* jwk = item.if_object();
    if (!jwk || keys->all.size() == kMostKeys) continue;
    const std::string type = text_member(*jwk, "kty"), use = text_member(*jwk, "use"),
                      algorithm = text_member(*jwk, "alg");
    Keys::One one{.id = text_member(*jwk, "kid"), .algorithm = {}, .key = nullptr};
    if (!use.empty() && use != "sig") continue;
    if (type == "RSA" && (algorithm.empty() || algorithm == "RS256")) {
      one.algorithm = "RS256";
      one.key = rsa_key(*jwk);
    } else if (type == "EC" && (algorithm.empty() || algorithm == "ES256")) {
      one.algorithm = "ES256";
      one.key = p256_key(*jwk);
    }
    if (one.key) keys->all.push_back(std::move(one));
  }
  if (keys->all.empty())
    return refused("the keys hold no RSA key of 2048 to 8192 bits and no key on P-256");
  return std::shared_ptr<const WebKeys>(new WebKeys(std::move(keys)));
}

Status WebKeys::verify(const WebToken& token) const {
  const Keys::One* found = nullptr;
  std::size_t candidates = 0;
  bool named = false;  // by the token, for another algorithm
  for (const Keys::One& one : keys_->all) {
    if (!token.key_id.empty() && one.id != token.key_id) continue;
    named = true;
    if (one.algorithm != token.algorithm) continue;
    found = &one;
    ++candidates;
  }
  if (!found && named && !token.key_id.empty())
    return refused("the token is signed by " + token.algorithm + ", for which its key '" +
                   token.key_id.substr(0, 64) + "' is not");
  if (!found)
    return Status::not_found("the issuer has no key '" + token.key_id.substr(0, 64) + "' for " +
                             token.algorithm);
  if (token.key_id.empty() && candidates > 1)
    return refused("the token names no key (kid), and the issuer has several");
  const bool holds = signature_holds(
      found->key.get(), token.signed_text,
      token.algorithm == "ES256" ? der_signature(token.signature) : token.signature);
  return holds ? Status() : refused("the token's signature does not hold");
}

Result<ApiKey> granted_by(const WebToken& token, const TokenRules& rules,
                          std::int64_t unix_seconds) {
  const json::object& claims = token.claims;
  if (text_member(claims, "iss") != rules.issuer)
    return refused("the token is of the issuer '" + text_member(claims, "iss").substr(0, 128) +
                   "', not of " + rules.issuer);
  const json::value* audience = claims.if_contains("aud");
  bool meant = audience && audience->is_string() && audience->get_string() == rules.audience;
  if (audience && audience->is_array())
    for (const json::value& one : audience->get_array())
      meant = meant || (one.is_string() && one.get_string() == rules.audience);
  if (!meant) return refused("the token is not for the audience " + rules.audience);
  const double now = static_cast<double>(unix_seconds),
               skew = static_cast<double>(rules.clock_skew_seconds);
  const auto expires = time_member(claims, "exp"), begins = time_member(claims, "nbf");
  if (!expires) return refused("the token does not say when it expires (exp)");
  if (now >= *expires + skew)
    return refused("the token has expired " + std::to_string(std::llround(now - *expires)) +
                   " seconds ago");
  if ((claims.contains("nbf") && !begins) || (begins && now < *begins - skew))
    return refused("the token is not valid yet (nbf)");
  const std::string subject = text_member(claims, "sub");
  const bool readable = std::ranges::none_of(
      subject, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
  if (subject.empty() || subject.size() > kMostSubjectBytes || !readable)
    return refused("the token names no subject (sub) of 1 to 256 readable bytes");
  ApiKey out;
  out.name = "token:" + subject;
  for (std::string& ns : words_of(claims.if_contains(rules.namespace_claim)))
    if ((ns == "*" || valid_namespace(ns)) && out.namespaces.size() < kMostNamespaces)
      out.namespaces.push_back(std::move(ns));
  if (out.namespaces.empty())
    return refused("the token's claim '" + rules.namespace_claim + "' names no namespace");
  for (const std::string& word : words_of(claims.if_contains(rules.scope_claim)))
    for (const Scope scope : {Scope::kRead, Scope::kWrite, Scope::kQuery, Scope::kAdmin})
      if (word == rules.scope_prefix + std::string(scope_name(scope)) && !out.allows(scope))
        out.scopes.push_back(scope);
  return out;
}

}  // namespace quire
