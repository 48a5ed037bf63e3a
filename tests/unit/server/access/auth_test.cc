#include "server/access/auth.h"

#include <gtest/gtest.h>

#include "server/config/namespace_name.h"
#include "server/http/http_message.h"

namespace quire {
namespace {

std::string entry(const std::string& name, const std::string& secret, const std::string& scopes,
                  const std::string& namespaces) {
  return "[[keys]]\nname = \"" + name + "\"\nsha256 = \"" + sha256(secret).hex() +
         "\"\nscopes = [" + scopes + "]\nnamespaces = [" + namespaces + "]\n";
}

TEST(KeyRing, FindsKeysByTheirSecret) {
  const auto ring = KeyRing::parse(entry("a", "secret-a", "\"read\"", "\"team-a\"") +
                                       entry("root", "secret-r", "\"admin\"", "\"*\""),
                                   "keys.toml");
  ASSERT_TRUE(ring.ok()) << ring.status().message();
  const ApiKey* a = (*ring)->find("secret-a");
  ASSERT_NE(a, nullptr);
  EXPECT_TRUE(a->allows(Scope::kRead));
  EXPECT_FALSE(a->allows(Scope::kWrite));
  EXPECT_TRUE(a->allows_namespace("team-a"));
  EXPECT_FALSE(a->allows_namespace("team-b"));
  const ApiKey* root = (*ring)->find("secret-r");
  ASSERT_NE(root, nullptr);
  EXPECT_TRUE(root->allows(Scope::kQuery));
  EXPECT_TRUE(root->allows_namespace("any"));
  EXPECT_EQ((*ring)->find("secret"), nullptr);
  EXPECT_EQ((*ring)->find(""), nullptr);
}

TEST(KeyRing, WrongFilesAreRefusedByName) {
  const std::string good = entry("a", "s", "\"read\"", "\"x\"");
  for (const std::string& bad :
       {std::string(), std::string("keys = 1\n"), good + good, entry("", "s", "\"read\"", "\"x\""),
        entry("a", "s", "\"root\"", "\"x\""), entry("a", "s", "", "\"x\""),
        entry("a", "s", "\"read\"", "\"no space\""), good + "color = 1\n",
        std::string("[[keys]]\nname=\"a\"\nsha256=\"12\"\nscopes=[\"read\"]\nnamespaces=[\"x\"]\n"),
        good + "requests_per_minute = -4\n", std::string("[[keys\n")}) {
    const auto ring = KeyRing::parse(bad, "keys.toml");
    ASSERT_FALSE(ring.ok()) << bad;
    EXPECT_EQ(ring.status().field(), "auth.keys_file");
    EXPECT_NE(ring.status().message().find("keys.toml"), std::string::npos)
        << ring.status().message();
  }
  EXPECT_FALSE(KeyRing::load("/nonexistent/keys.toml").ok());
}

TEST(Auth, TheThreeWaysToPresentAKey) {
  Headers h;
  EXPECT_EQ(presented_key(h), "");
  h.set("x-api-key", "three");
  EXPECT_EQ(presented_key(h), "three");
  h.set("API-Key", "two");
  EXPECT_EQ(presented_key(h), "two");
  h.set("Authorization", "bearer  one");
  EXPECT_EQ(presented_key(h), "one");
}

TEST(Auth, NamespacesAndLoopback) {
  for (const auto* good : {"a", "team-a", "A.b_c-9", "0"})
    EXPECT_TRUE(valid_namespace(good)) << good;
  for (const auto* bad : {"", "-a", "a b", "a/b", "ü", "."})
    EXPECT_FALSE(valid_namespace(bad)) << bad;
  EXPECT_FALSE(valid_namespace(std::string(65, 'a')));
  for (const auto* host : {"127.0.0.1", "127.9.9.9", "localhost", "::1"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const auto* host : {"0.0.0.0", "::", "10.0.0.1", "127.evil.com", "example.org"})
    EXPECT_FALSE(is_loopback(host)) << host;
}

TEST(Auth, NewSecretsDiffer) {
  const auto a = make_api_secret(), b = make_api_secret();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->size(), 43u);
  EXPECT_NE(*a, *b);
}

}  // namespace
}  // namespace quire
