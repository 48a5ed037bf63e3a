#include "cachestore/format/key.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace quire {
namespace {

TEST(Sha256, GivesTheStandardDigests) {
  EXPECT_EQ(sha256("abc").hex(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("").hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 h;
  EXPECT_EQ(h.update("a").update("bc").finish(), sha256("abc"));
  EXPECT_EQ(h.update("abc").finish(), sha256("abc")) << "finish() starts anew";
}

TEST(Sha256, FieldsCannotRunIntoEachOther) {
  EXPECT_NE(Sha256().update_field("ab").update_field("c").finish(),
            Sha256().update_field("a").update_field("bc").finish());
}

TEST(Digest, HexRoundTripAndBadInput) {
  const Digest d = sha256("x");
  ASSERT_TRUE(Digest::from_hex(d.hex()).ok());
  EXPECT_EQ(*Digest::from_hex(d.hex()), d);
  EXPECT_FALSE(d.is_zero());
  EXPECT_TRUE(Digest{}.is_zero());
  EXPECT_EQ(Digest::from_hex("abc").code(), Code::kInvalidArgument);
  EXPECT_EQ(Digest::from_hex(std::string(64, 'g')).code(), Code::kInvalidArgument);
}

TEST(BlockKeyChain, ChangesWithSeedTokensOrderLengthAndBlockSize) {
  const std::vector<std::int32_t> ids = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::set<Digest> keys;
  keys.insert(BlockKeyChain::context_key(sha256("seed"), ids, 4));
  keys.insert(BlockKeyChain::context_key(sha256("other"), ids, 4));
  keys.insert(BlockKeyChain::context_key(sha256("seed"), ids, 8));
  keys.insert(BlockKeyChain::context_key(sha256("seed"), std::span(ids).first(8), 4));
  keys.insert(BlockKeyChain::context_key(sha256("seed"), {}, 4));
  std::vector<std::int32_t> swapped = {2, 1, 3, 4, 5, 6, 7, 8, 9};
  keys.insert(BlockKeyChain::context_key(sha256("seed"), swapped, 4));
  EXPECT_EQ(keys.size(), 6u);
  EXPECT_EQ(BlockKeyChain::context_key(sha256("seed"), ids, 4),
            BlockKeyChain::context_key(sha256("seed"), ids, 4));
}

TEST(BlockKeyChain, EqualPrefixesShareBlockKeys) {
  std::vector<std::int32_t> a(130), b(130);
  for (int i = 0; i < 130; ++i)
    a[static_cast<std::size_t>(i)] = b[static_cast<std::size_t>(i)] = i * 7 - 3;
  b[100] = -1;
  BlockKeyChain x(sha256("seed")), y(sha256("seed"));
  EXPECT_EQ(x.append(std::span(a).first(70)), y.append(std::span(b).first(70)));
  EXPECT_NE(x.append(std::span(a).subspan(70)), y.append(std::span(b).subspan(70)));
  EXPECT_EQ(x.num_tokens(), 130);
}

}  // namespace
}  // namespace quire
