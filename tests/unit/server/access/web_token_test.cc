#include "server/access/web_token.h"

#include <gtest/gtest.h>

#include "tests/unit/server/access/token_maker.h"

namespace quire {
namespace {

using test::base64url;
using test::hmac_token;
using test::IssuerKey;

constexpr std::int64_t kNow = 1'740'000'000;

std::string claims(const std::string& more = {}) {
  return R"({"iss":"https://id.example","aud":"quire","sub":"alice","exp":1740000600,)"
         R"("namespaces":["team-a"],"scope":"openid quire:read quire:query")" +
         more + "}";
}

TokenRules rules() {
  TokenRules r;
  r.issuer = "https://id.example";
  r.audience = "quire";
  r.scope_prefix = "quire:";
  return r;
}

std::shared_ptr<const WebKeys> keys_of(const std::string& jwks) {
  auto keys = WebKeys::parse(jwks);
  QUIRE_CHECK(keys.ok(), keys.status().message());
  return *keys;
}

/// Returns the first refusal of the token's text, signature or claims; empty: it is taken.
std::string refusal(const std::string& token, const WebKeys& keys, std::int64_t now = kNow) {
  const auto parsed = parse_web_token(token);
  if (!parsed.ok()) return parsed.status().message();
  if (const Status s = keys.verify(*parsed); !s.ok()) return s.message();
  const auto granted = granted_by(*parsed, rules(), now);
  return granted.ok() ? "" : granted.status().message();
}

TEST(WebToken, SignaturesOfBothAlgorithmsHold) {
  for (const char* algorithm : {"RS256", "ES256"}) {
    const IssuerKey key(algorithm, "k1"), other(algorithm, "k1");
    const auto keys = keys_of(key.jwks());
    const std::string token = key.token(claims());
    EXPECT_TRUE(looks_like_token(token));
    EXPECT_EQ(refusal(token, *keys), "") << algorithm;
    EXPECT_EQ(refusal(other.token(claims()), *keys), "the token's signature does not hold");
    // Claims of one token under the signature of another one.
    const std::string forged = key.token(claims(R"(,"admin":true)"));
    const std::string mixed = forged.substr(0, forged.rfind('.')) + token.substr(token.rfind('.'));
    EXPECT_EQ(refusal(mixed, *keys), "the token's signature does not hold");
  }
}

TEST(WebToken, WhatTheClaimsGrant) {
  const IssuerKey key("ES256", "k1");
  const auto token = parse_web_token(key.token(claims()));
  ASSERT_TRUE(token.ok());
  const auto granted = granted_by(*token, rules(), kNow);
  ASSERT_TRUE(granted.ok()) << granted.status().message();
  EXPECT_EQ(granted->name, "token:alice");
  EXPECT_EQ(granted->namespaces, std::vector<std::string>{"team-a"});
  EXPECT_TRUE(granted->allows(Scope::kRead));
  EXPECT_TRUE(granted->allows(Scope::kQuery));
  EXPECT_FALSE(granted->allows(Scope::kWrite));
  EXPECT_FALSE(granted->allows(Scope::kAdmin));

  TokenRules plain = rules();
  plain.scope_prefix.clear();
  plain.scope_claim = "roles";
  plain.namespace_claim = "tenant";
  const auto roles = parse_web_token(
      key.token(claims(R"(,"roles":["admin","other"],"tenant":"a no/ns b")")));
  const auto both = granted_by(*roles, plain, kNow);
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->namespaces, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(both->allows(Scope::kAdmin));
}

TEST(WebToken, NoOtherAlgorithmIsTaken) {
  const IssuerKey key("RS256", "k1");
  const auto keys = keys_of(key.jwks());
  const std::string none = base64url(R"({"alg":"none"})") + "." + base64url(claims()) + ".";
  EXPECT_NE(refusal(none, *keys).find("'none'; only RS256 and ES256"), std::string::npos);
  EXPECT_NE(refusal(none + base64url("x"), *keys).find("'none'"), std::string::npos);
  // The public key as the secret of an HMAC.
  EXPECT_NE(refusal(hmac_token(claims(), key.public_bytes()), *keys).find("'HS256'"),
            std::string::npos);
  EXPECT_NE(refusal(key.token(R"({"alg":"PS256","kid":"k1"})", claims()), *keys).find("'PS256'"),
            std::string::npos);
  // An algorithm that is not the key's.
  EXPECT_NE(refusal(key.token(R"({"alg":"ES256","kid":"k1"})", claims()), *keys)
                .find("for which its key 'k1' is not"),
            std::string::npos);
  EXPECT_NE(refusal(key.token(R"({"alg":"RS256","kid":"k1","crit":["x"]})", claims()), *keys)
                .find("crit"),
            std::string::npos);
}

TEST(WebToken, ClaimsAreChecked) {
  const IssuerKey key("ES256", "k1");
  const auto keys = keys_of(key.jwks());
  const auto why = [&](const std::string& text, std::int64_t now = kNow) {
    return refusal(key.token(text), *keys, now);
  };
  EXPECT_EQ(why(claims(), kNow + 659), "");
  EXPECT_EQ(why(claims(), kNow + 660), "the token has expired 60 seconds ago");
  EXPECT_EQ(why(claims(R"(,"nbf":1740000060)")), "");
  EXPECT_NE(why(claims(R"(,"nbf":1740000061)")).find("not valid yet"), std::string::npos);
  EXPECT_NE(why(claims(R"(,"nbf":"soon")")).find("not valid yet"), std::string::npos);
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = claims();
    return text.replace(text.find(from), from.size(), to);
  };
  EXPECT_NE(why(with("https://id.example", "https://id.example/")).find("issuer"),
            std::string::npos);
  EXPECT_NE(why(with(R"("quire")", R"("other")")).find("audience"), std::string::npos);
  EXPECT_EQ(why(with(R"("quire")", R"(["other","quire"])")), "");
  EXPECT_NE(why(with(R"("exp")", R"("ext")")).find("(exp)"), std::string::npos);
  EXPECT_NE(why(with("1740000600", R"("1740000600")")).find("(exp)"), std::string::npos);
  EXPECT_NE(why(with("alice", "")).find("(sub)"), std::string::npos);
  EXPECT_NE(why(with("alice", R"(a\nb)")).find("(sub)"), std::string::npos);
  EXPECT_NE(why(with("alice", std::string(257, 'a'))).find("(sub)"), std::string::npos);
  EXPECT_NE(why(with("team-a", "/")).find("'namespaces' names no namespace"), std::string::npos);
}

TEST(WebToken, TextsThatAreNoTokensAreRefused) {
  const IssuerKey key("ES256", "k1");
  const std::string token = key.token(claims());
  for (const std::string& bad :
       {std::string(), std::string("a.b"), std::string("a.b.c.d"), token + "=", token + ".x",
        "." + token, token.substr(0, token.rfind('.') + 1), base64url("[]") + ".e30.eA",
        base64url(R"({"alg":"ES256"})") + "." + base64url("\xff") + ".eA",
        base64url(R"({"alg":"ES256","alg":"none"})") + ".e30.eA"})
    EXPECT_EQ(parse_web_token(bad).code(), Code::kInvalidArgument) << bad;
  const auto long_one = parse_web_token(
      key.token(claims(R"(,"x":")" + std::string(9000, 'x') + "\"")));
  EXPECT_NE(long_one.status().message().find("at most 8192"), std::string::npos);
  EXPECT_FALSE(looks_like_token("qk_0123456789"));
  EXPECT_FALSE(looks_like_token("eyJ.a"));
  // A signature of another length is no signature.
  const auto keys = keys_of(key.jwks());
  EXPECT_NE(refusal(token.substr(0, token.rfind('.') + 1) + base64url("short"), *keys), "");
}

TEST(WebToken, KeySetsKeepWhatCanCheckAndRefuseTheRest) {
  const IssuerKey rsa("RS256", "r"), ec("ES256", "e"), second("ES256", "e2");
  const auto keys = keys_of(R"({"keys":[{"kty":"oct","k":"c2VjcmV0"},)" + rsa.jwk() + "," +
                            ec.jwk() + R"(,{"kty":"EC","crv":"P-384"},7]})");
  EXPECT_EQ(keys->size(), 2u);
  EXPECT_EQ(refusal(ec.token(R"({"alg":"ES256"})", claims()), *keys), "");
  const auto three = keys_of(R"({"keys":[)" + ec.jwk() + "," + second.jwk() + "]}");
  EXPECT_NE(refusal(ec.token(R"({"alg":"ES256"})", claims()), *three).find("names no key (kid)"),
            std::string::npos);
  EXPECT_EQ(refusal(second.token(claims()), *three), "");
  const auto unknown = parse_web_token(rsa.token(claims()));
  EXPECT_EQ(three->verify(*unknown).code(), Code::kNotFound);
  const IssuerKey small("RS256", "s", 1024);
  for (const std::string& bad :
       {std::string("x"), std::string("{}"), std::string(R"({"keys":[]})"), small.jwks(),
        std::string(R"({"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]})"),
        std::string(R"({"keys":[{"kty":"RSA","n":"","e":"AQAB"}]})")})
    EXPECT_EQ(WebKeys::parse(bad).status().code(), Code::kInvalidArgument) << bad;
  // A point that is not on the curve.
  std::string off = ec.jwk();
  off.replace(off.find("\"x\":\"") + 5, 4, "AAAA");
  EXPECT_FALSE(WebKeys::parse(R"({"keys":[)" + off + "]}").ok());
}

}  // namespace
}  // namespace quire
