// The record of a shared segment, and what the checksums of its values are bound to.
#include "cachestore/remote/remote_record.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

RemoteRecord some_record() {
  RemoteRecord r;
  r.key = test::key_of(7);
  r.fingerprint = "m-12345678";
  r.layout = {3, 2, 2};
  r.sizes.add(1000, 5);
  r.sizes.add(500);
  r.sizes.add(64, 2);
  return r;
}

TEST(RemoteRecord, ComesBackAsItWent) {
  const RemoteRecord r = some_record();
  EXPECT_EQ(r.value_bytes(), 5500u);
  EXPECT_EQ(r.sketch_bytes(), 128u);
  EXPECT_EQ(r.stored_bytes(), 5628u + 8 * 32);
  const auto back = decode_remote_record(encode_remote_record(r));
  ASSERT_OK(back);
  EXPECT_EQ(back->key, r.key);
  EXPECT_EQ(back->fingerprint, r.fingerprint);
  EXPECT_EQ(back->layout, r.layout);
  EXPECT_EQ(back->sizes.runs(), r.sizes.runs());
}

TEST(RemoteRecord, ARecordOfEncryptedValuesNamesTheirKey) {
  RemoteRecord r = some_record();
  const std::string plain = encode_remote_record(r);
  r.key_id = 0x1234567890abcdefu;
  EXPECT_EQ(r.stored_bytes(), 5628u + 8 * (32 + 28));
  const std::string sealed = encode_remote_record(r);
  EXPECT_EQ(sealed.size(), plain.size() + 8);
  const auto back = decode_remote_record(sealed);
  ASSERT_OK(back);
  EXPECT_EQ(back->key_id, r.key_id);
  EXPECT_EQ(back->sizes.runs(), r.sizes.runs());
  EXPECT_EQ(decode_remote_record(plain)->key_id, 0u);
}

TEST(RemoteRecord, AnyChangedByteOrLengthIsRefused) {
  const std::string bytes = encode_remote_record(some_record());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::string other = bytes;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_EQ(decode_remote_record(other).code(), Code::kCorruption) << i;
    EXPECT_EQ(decode_remote_record(bytes.substr(0, i)).code(), Code::kCorruption) << i;
  }
  EXPECT_EQ(decode_remote_record(bytes + "x").code(), Code::kCorruption);
}

TEST(RemoteRecord, SizesThatDoNotFitTheLayoutAreRefused) {
  RemoteRecord r = some_record();
  r.sizes.add(64);
  EXPECT_EQ(decode_remote_record(encode_remote_record(r)).code(), Code::kCorruption);
  r = some_record();
  r.layout.num_sketches = 3;
  EXPECT_EQ(decode_remote_record(encode_remote_record(r)).code(), Code::kCorruption);
  r.layout = {0, 2, 2};
  EXPECT_EQ(decode_remote_record(encode_remote_record(r)).code(), Code::kCorruption);
  r.layout = {1u << 30, 1u << 30, 0};
  EXPECT_EQ(decode_remote_record(encode_remote_record(r)).code(), Code::kCorruption);
}

TEST(RemoteRecord, NamesOfValuesDifferByModelContextAndPlace) {
  const SegmentLayout layout{2, 2, 1};
  std::set<std::tuple<std::uint64_t, int, std::uint32_t, std::uint32_t>> seen;
  for (const auto* model : {"m-1", "m-2"}) {
    for (const std::uint64_t context : {1, 2}) {
      for (std::uint64_t position = 0; position < 5; ++position) {
        const auto n = remote_value_name(test::key_of(context), model, layout, position);
        EXPECT_TRUE(seen.emplace(n.segment, static_cast<int>(n.part), n.block, n.group).second);
      }
    }
  }
  const std::string plain = remote_name(test::key_of(1), "m-1");
  EXPECT_NE(plain, remote_name(test::key_of(1), "m-2"));
  EXPECT_EQ(remote_name(test::key_of(1), "m-1", 0xabc), plain + ".0000000000000abc");
}

}  // namespace
}  // namespace quire
