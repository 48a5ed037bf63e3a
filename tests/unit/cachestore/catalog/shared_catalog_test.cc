#include "cachestore/catalog/shared_catalog.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

TEST(SharedCatalog, TheShardOfADocumentIsTheSameInEveryBuild) {
  // The first byte of SHA-256 over namespace, a zero byte and id, modulo 16.
  EXPECT_EQ(catalog_shard("default", "a"), 0xc0u % kCatalogShards);
  EXPECT_EQ(catalog_shard("default", "b"), 0xe2u % kCatalogShards);
  std::set<std::uint32_t> all;
  for (int i = 0; i < 1000; ++i) all.insert(catalog_shard("default", std::to_string(i)));
  EXPECT_EQ(all.size(), kCatalogShards);
}

TEST(SharedCatalog, AnAwayCatalogIsKnownByItsStatus) {
  const Status s = catalog_away("no route to host");
  EXPECT_TRUE(catalog_is_away(s));
  EXPECT_EQ(s.message(), "the shared catalog does not answer: no route to host");
  EXPECT_EQ(catalog_away(s.message()).message(), s.message());
  EXPECT_FALSE(catalog_is_away(Status::io("the disk is slow")));
  EXPECT_FALSE(catalog_is_away({}));
  CatalogStats stats;
  EXPECT_TRUE(catalog_status(stats).ok());
  stats.shared = true;
  EXPECT_TRUE(catalog_status(stats).ok());
  stats.up = false;
  stats.reason = "it is switched off";
  EXPECT_TRUE(catalog_is_away(catalog_status(stats)));
}

TEST(SharedCatalog, WithoutAnAddressThereIsNone) {
  EXPECT_TRUE(check_catalog_url("").ok());
  const auto none = open_shared_catalog({});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(*none, nullptr);
}

}  // namespace
}  // namespace quire
