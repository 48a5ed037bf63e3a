#include "server/access/hosts.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(HostName, IsWithoutPortInLowerCase) {
  EXPECT_EQ(host_name("LocalHost:8080"), "localhost");
  EXPECT_EQ(host_name(" example.org. "), "example.org");
  EXPECT_EQ(host_name("[::1]:80"), "[::1]");
  EXPECT_EQ(host_name("[::1]"), "[::1]");
  EXPECT_EQ(host_name("[::1"), "[::1");
  EXPECT_EQ(host_name(""), "");
}

TEST(HostAllowed, LoopbackAnswersToItsOwnNamesOnly) {
  const std::vector<std::string> none;
  for (const auto* own : {"localhost", "LOCALHOST:1", "127.0.0.1:8080", "127.0.0.2", "[::1]:8080"})
    EXPECT_TRUE(host_allowed(own, "127.0.0.1", none)) << own;
  for (const auto* other : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "",
                            "10.0.0.1", "[::1", "localhost@evil.example", "2130706433"})
    EXPECT_FALSE(host_allowed(other, "127.0.0.1", none)) << other;
  EXPECT_TRUE(host_allowed("[::1]:1", "::1", none));
}

TEST(HostAllowed, BeyondLoopbackAnyNameUnlessSomeAreNamed) {
  EXPECT_TRUE(host_allowed("any.example", "0.0.0.0", {}));
  const std::vector<std::string> names = {"Quire.Example"};
  EXPECT_TRUE(host_allowed("quire.example:443", "10.0.0.7", names));
  EXPECT_TRUE(host_allowed("10.0.0.7:8080", "10.0.0.7", names));
  EXPECT_TRUE(host_allowed("localhost", "10.0.0.7", names));
  EXPECT_FALSE(host_allowed("any.example", "10.0.0.7", names));
  EXPECT_TRUE(host_allowed("[fd00::7]:8080", "fd00::7", names));
}

TEST(HostAllowed, NamesAndTheStarAreAddedOnLoopback) {
  EXPECT_TRUE(host_allowed("quire.example", "127.0.0.1", {"quire.example"}));
  EXPECT_FALSE(host_allowed("other.example", "127.0.0.1", {"quire.example"}));
  EXPECT_TRUE(host_allowed("other.example", "127.0.0.1", {"*"}));
}

TEST(OwnOrigin, IsThatOfTheHostOrOfANameThatIsAllowed) {
  const std::vector<std::string> none;
  EXPECT_TRUE(is_own_origin("http://127.0.0.1:8080", "127.0.0.1:8080", none));
  EXPECT_TRUE(is_own_origin("https://quire.example", "Quire.Example", none));
  for (const auto* other : {"http://127.0.0.1:3000", "http://localhost:8080", "null", "", "http://",
                            "https://127.0.0.1:8080.evil.example", "https://evil.example"})
    EXPECT_FALSE(is_own_origin(other, "127.0.0.1:8080", none)) << other;
  EXPECT_FALSE(is_own_origin("http://", "", none));
  EXPECT_TRUE(is_own_origin("https://quire.example", "127.0.0.1:8080", {"quire.example"}));
  EXPECT_TRUE(is_own_origin("https://other.example", "127.0.0.1:8080", {"*"}));
}

}  // namespace
}  // namespace quire
