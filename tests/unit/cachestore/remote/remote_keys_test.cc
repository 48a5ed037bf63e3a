// Encryption of shared values: what was sealed opens with the same key at the same place alone.
#include "cachestore/remote/remote_keys.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

constexpr const char* kHex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
constexpr const char* kOther = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

RemoteKeys keys_of(const char* hex, const std::string& ns = "team-a") {
  RemoteKeys keys;
  QUIRE_CHECK(keys.add(ns, hex).ok(), "a good key");
  return keys;
}
record::ValueName name_of(std::uint32_t block, std::uint32_t group = 1) {
  return {0x1122334455667788u, record::Part::kValue, block, group};
}
std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

TEST(RemoteKeys, OpensWhatAnotherImplementationHasSealed) {
  // By the cryptography package of Python, with the key and the associated data of docs/formats.md.
  const std::string sealed = from_hex(
      "6465666768696a6b6c6d6e6fdaa194b042710ebb39bb9c4ac6be4e0d44219fa7"
      "12730adb5633cbd93f43516f22afe69baf451b");
  const RemoteKeys keys = keys_of(kHex);
  const auto opened = open_value(*keys.find("team-a"), test::key_of(7), name_of(3), sealed);
  ASSERT_OK(opened);
  EXPECT_EQ(*opened, "bytes of a stored value");
  EXPECT_EQ(keys.find("team-a")->id, 0xcbbaa1d6b18761cfu);
}

TEST(RemoteKeys, WhatIsSealedOpensAtItsPlaceAlone) {
  const RemoteKeys keys = keys_of(kHex), others = keys_of(kOther);
  const RemoteKeys::Key& key = *keys.find("team-a");
  const std::string plain(5000, 'x');
  const std::string sealed = seal_value(key, test::key_of(7), name_of(3), plain);
  EXPECT_EQ(sealed.size(), plain.size() + kSealBytes);
  EXPECT_EQ(sealed.find("xxxx"), std::string::npos);
  EXPECT_EQ(open_value(key, test::key_of(7), name_of(3), sealed).value(), plain);
  const auto refused = [&](const Result<std::string>& r) {
    EXPECT_EQ(r.code(), Code::kCorruption);
  };
  refused(open_value(*others.find("team-a"), test::key_of(7), name_of(3), sealed));
  refused(open_value(key, test::key_of(8), name_of(3), sealed));
  refused(open_value(key, test::key_of(7), name_of(4), sealed));
  refused(open_value(key, test::key_of(7), name_of(3, 2), sealed));
  record::ValueName sketch = name_of(3);
  sketch.part = record::Part::kSketch;
  refused(open_value(key, test::key_of(7), sketch, sealed));
}

TEST(RemoteKeys, AnyChangedByteOrLengthIsRefused) {
  const RemoteKeys keys = keys_of(kHex);
  const RemoteKeys::Key& key = *keys.find("team-a");
  const std::string sealed = seal_value(key, test::key_of(7), name_of(3), "some bytes");
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    std::string other = sealed;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_EQ(open_value(key, test::key_of(7), name_of(3), other).code(), Code::kCorruption) << i;
    EXPECT_EQ(open_value(key, test::key_of(7), name_of(3), sealed.substr(0, i)).code(),
              Code::kCorruption)
        << i;
  }
  EXPECT_EQ(open_value(key, test::key_of(7), name_of(3), sealed + "x").code(), Code::kCorruption);
}

TEST(RemoteKeys, EverySealHasANonceOfItsOwn) {
  const RemoteKeys keys = keys_of(kHex);
  std::set<std::string> nonces;
  for (int i = 0; i < 200; ++i)
    nonces.insert(seal_value(*keys.find("team-a"), test::key_of(7), name_of(3), "")
                      .substr(0, kSealNonceBytes));
  EXPECT_EQ(nonces.size(), 200u);
}

TEST(RemoteKeys, ANamespaceHasItsOwnKeyOrThatOfAllOthers) {
  RemoteKeys keys = keys_of(kHex);
  EXPECT_EQ(keys.find("team-b"), nullptr);
  ASSERT_OK(keys.add("*", std::string(kOther) + "\n"));
  ASSERT_NE(keys.find("team-b"), nullptr);
  EXPECT_NE(keys.find("team-b")->id, keys.find("team-a")->id);
  EXPECT_EQ(keys.find("team-a")->id, keys_of(kHex, "x").find("x")->id);
}

TEST(RemoteKeys, AKeyIs64HexadecimalDigitsAndIsNeverShown) {
  RemoteKeys keys;
  for (const std::string& bad : {std::string(), std::string("secret"), std::string(63, 'a'),
                                 std::string(65, 'a'), std::string(64, 'g')}) {
    const Status s = keys.add("team-a", bad);
    EXPECT_EQ(s.code(), Code::kInvalidArgument);
    EXPECT_NE(s.message().find("64 hexadecimal digits"), std::string::npos);
    EXPECT_TRUE(bad.empty() || s.message().find(bad) == std::string::npos);
  }
  EXPECT_EQ(keys.size(), 0u);
}

}  // namespace
}  // namespace quire
