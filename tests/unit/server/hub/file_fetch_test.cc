#include "server/hub/file_fetch.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstring>

#include "server/hub/transfer.h"

namespace quire::hub {
namespace {

bool is_public(const std::string& text) {
  sockaddr_storage storage{};
  auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
  if (text.find(':') == std::string::npos) {
    v4->sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, text.c_str(), &v4->sin_addr), 1) << text;
  } else {
    v6->sin6_family = AF_INET6;
    EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr), 1) << text;
  }
  return is_public_address(reinterpret_cast<const sockaddr*>(&storage));
}

TEST(FileFetch, OnlyAddressesOfTheInternetArePublic) {
  for (const char* text :
       {"93.184.216.34", "8.8.8.8", "172.15.255.255", "172.32.0.0", "100.63.0.1",
        "2606:2800:220:1::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"})
    EXPECT_TRUE(is_public(text)) << text;
  for (const char* text : {"127.0.0.1",
                           "0.0.0.0",
                           "10.1.2.3",
                           "172.16.0.1",
                           "172.31.255.255",
                           "192.168.1.1",
                           "169.254.169.254",
                           "100.64.0.1",
                           "198.18.0.1",
                           "224.0.0.1",
                           "255.255.255.255",
                           "::",
                           "::1",
                           "fe80::1",
                           "fc00::1",
                           "fd12::1",
                           "ff02::1",
                           "::ffff:127.0.0.1",
                           "::ffff:169.254.169.254",
                           "64:ff9b::7f00:1",
                           "2002:7f00:1::",
                           "2001::1",
                           "2001:db8::1"})
    EXPECT_FALSE(is_public(text)) << text;
}

TEST(FileFetch, PatternsOfHosts) {
  const auto allowed = [](const char* host, const char* port, std::vector<std::string> patterns) {
    return host_allowed(host, port, patterns);
  };
  EXPECT_FALSE(allowed("example.org", "443", {}));
  EXPECT_TRUE(allowed("example.org", "443", {"Example.org"}));
  EXPECT_FALSE(allowed("a.example.org", "443", {"example.org"}));
  EXPECT_TRUE(allowed("a.b.example.org", "80", {"x", "*.example.org"}));
  EXPECT_FALSE(allowed("example.org", "80", {"*.example.org"}));
  EXPECT_FALSE(allowed("badexample.org", "80", {"*.example.org"}));
  EXPECT_FALSE(allowed("example.org", "8080", {"example.org", "*"}));
  EXPECT_TRUE(allowed("example.org", "8080", {"example.org:8080"}));
  EXPECT_FALSE(allowed("example.org", "443", {"example.org:8080"}));
  EXPECT_TRUE(allowed("anything", "80", {"*"}));
  EXPECT_TRUE(allowed("[::1]", "80", {"[::1]"}));
}

TEST(FileFetch, AddressesAreTakenApart) {
  const auto parts = split_url("HTTPS://Example.org/a%20b/c.pdf?x=1#y");
  ASSERT_TRUE(parts.ok()) << parts.status().to_string();
  EXPECT_EQ(parts->scheme + " " + parts->host + " " + parts->port + " " + parts->path + " " +
                parts->query,
            "https example.org 443 /a%20b/c.pdf x=1");
  const auto named = split_url("http://user:secret@example.org/");
  ASSERT_TRUE(named.ok());
  EXPECT_TRUE(named->has_user);
  for (const char* bad :
       {"", "example.org", "ftp://example.org/", "file:///etc/passwd", "http://", "http://a b/"})
    EXPECT_EQ(split_url(bad).status().field(), "url") << bad;
}

TEST(FileFetch, WhatTheRulesForbidIsNotAsked) {
  FetchRules rules;
  EXPECT_EQ(fetch_file("file:///etc/passwd", rules).code(), Code::kInvalidArgument);
  EXPECT_EQ(fetch_file("http://127.0.0.1:1/x", rules).code(), Code::kFailedPrecondition);
  rules.hosts = {"127.0.0.1:1"};
  const auto refused = fetch_file("http://127.0.0.1:1/x", rules);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status().message().find("public"), std::string::npos)
      << refused.status().message();
  EXPECT_EQ(fetch_file("http://me@127.0.0.1:1/x", rules).code(), Code::kInvalidArgument);
  rules.private_addresses = true;
  EXPECT_EQ(fetch_file("http://127.0.0.1:1/x", rules).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace quire::hub
