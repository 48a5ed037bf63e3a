// Makes keys, key sets and tokens, as an issuer does.
#pragma once

#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rsa.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace quire::test {

inline std::string base64url(const std::string& bytes) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string out;
  std::uint32_t bits = 0;
  int have = 0;
  for (const char c : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(c);
    for (have += 8; have >= 6; have -= 6) out.push_back(kLetters[(bits >> (have - 6)) & 63]);
  }
  if (have > 0) out.push_back(kLetters[(bits << (6 - have)) & 63]);
  return out;
}

/// One key pair of an issuer.
class IssuerKey {
 public:
  IssuerKey(std::string algorithm, std::string id, unsigned rsa_bits = 2048)
      : algorithm_(std::move(algorithm)), id_(std::move(id)) {
    key_.reset(algorithm_ == "RS256" ? EVP_RSA_gen(rsa_bits) : EVP_EC_gen("P-256"));
    QUIRE_CHECK(key_ != nullptr, "no key");
  }

  /// The public key as a member of a JWKS.
  std::string jwk() const {
    std::string out = R"({"kid":")" + id_ + R"(","use":"sig","alg":")" + algorithm_ + "\"";
    if (algorithm_ == "RS256")
      return out + R"(,"kty":"RSA","n":")" + number(OSSL_PKEY_PARAM_RSA_N) + R"(","e":")" +
             number(OSSL_PKEY_PARAM_RSA_E) + "\"}";
    return out + R"(,"kty":"EC","crv":"P-256","x":")" + number(OSSL_PKEY_PARAM_EC_PUB_X, 32) +
           R"(","y":")" + number(OSSL_PKEY_PARAM_EC_PUB_Y, 32) + "\"}";
  }
  std::string jwks() const { return R"({"keys":[)" + jwk() + "]}"; }
  /// The modulus, which is public, as the secret of an HMAC.
  std::string public_bytes() const { return number(OSSL_PKEY_PARAM_RSA_N); }

  std::string token(const std::string& claims) const {
    return token(R"({"alg":")" + algorithm_ + R"(","kid":")" + id_ + R"(","typ":"JWT"})", claims);
  }
  std::string token(const std::string& header, const std::string& claims) const {
    const std::string text = base64url(header) + "." + base64url(claims);
    return text + "." + base64url(sign(text));
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  };

  std::string number(const char* name, int bytes = 0) const {
    BIGNUM* n = nullptr;
    QUIRE_CHECK(EVP_PKEY_get_bn_param(key_.get(), name, &n) == 1, name);
    std::string out(static_cast<std::size_t>(bytes > 0 ? bytes : BN_num_bytes(n)), '\0');
    BN_bn2binpad(n, reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size()));
    BN_free(n);
    return base64url(out);
  }
  std::string sign(const std::string& text) const {
    EVP_MD_CTX* context = EVP_MD_CTX_new();
    std::size_t bytes = 0;
    const auto* data = reinterpret_cast<const unsigned char*>(text.data());
    QUIRE_CHECK(EVP_DigestSignInit(context, nullptr, EVP_sha256(), nullptr, key_.get()) == 1 &&
                    EVP_DigestSign(context, nullptr, &bytes, data, text.size()) == 1,
                "no signature");
    std::string out(bytes, '\0');
    auto* begin = reinterpret_cast<unsigned char*>(out.data());
    QUIRE_CHECK(EVP_DigestSign(context, begin, &bytes, data, text.size()) == 1, "no signature");
    out.resize(bytes);
    EVP_MD_CTX_free(context);
    if (algorithm_ == "RS256") return out;
    const unsigned char* at = begin;
    ECDSA_SIG* der = d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(bytes));
    std::string raw(64, '\0');
    auto* to = reinterpret_cast<unsigned char*>(raw.data());
    BN_bn2binpad(ECDSA_SIG_get0_r(der), to, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(der), to + 32, 32);
    ECDSA_SIG_free(der);
    return raw;
  }

  const std::string algorithm_, id_;
  std::unique_ptr<EVP_PKEY, Free> key_;
};

/// Signs a token by HS256 with a secret.
inline std::string hmac_token(const std::string& claims, const std::string& secret) {
  const std::string text = base64url(R"({"alg":"HS256","typ":"JWT"})") + "." + base64url(claims);
  std::string mac(32, '\0');
  unsigned bytes = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(),
       reinterpret_cast<unsigned char*>(mac.data()), &bytes);
  return text + "." + base64url(mac);
}

}  // namespace quire::test
