// Pins keep to their share of the disk, also where their KV is to come.
#include "server/service/pin_share.h"

#include <gtest/gtest.h>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

TEST(PinShare, KvThatIsToComeCountsByItsTokens) {
  StoreOptions options;
  options.max_bytes = 1ull << 30;
  auto store = open_store_on(
      options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
  ASSERT_OK(store);
  EngineInfo info;
  info.kv_bytes_per_token = 3 << 19;
  info.draft_kv_bytes_per_token = 1 << 19;
  const auto check = [&](std::uint64_t mib) {
    return check_pin_share(**store, info, 0.5, {mib << 20, 0}).code();
  };
  EXPECT_EQ(check(512), Code::kOk);
  EXPECT_EQ(check(513), Code::kResourceExhausted);
  DocumentManifest lazy = test::manifest_of("lazy", {1});
  ASSERT_EQ(lazy.chunks[0].token_ids.size(), 20u);
  lazy.pinned = true;
  ASSERT_OK((*store)->commit_document(lazy, test::text_of("lazy")));
  EXPECT_EQ(check(472), Code::kOk);
  EXPECT_EQ(check(473), Code::kResourceExhausted);
}

}  // namespace
}  // namespace quire
