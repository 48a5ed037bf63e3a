#include "server/config/quotas_file.h"

#include <gtest/gtest.h>

#include <fstream>

namespace quire {
namespace {

std::string refused(const std::string& text) {
  const auto read = parse_quotas(text, "quotas.toml");
  if (read.ok()) return "";
  EXPECT_EQ(read.status().field(), "cache.quotas_file");
  return read.status().message();
}

TEST(QuotasFile, ReadsLimitsAndShares) {
  const auto read = parse_quotas(
      "[team-a]\ndram_bytes = '2GiB'\ndisk_bytes = 1000\nremote_bytes = '1MB'\nshare = "
      "2\n[\"*\"]\nshare = 0.5\n",
      "quotas.toml");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_TRUE(read->enabled);
  EXPECT_EQ(read->of("team-a").dram_bytes, 2u << 30);
  EXPECT_EQ(read->of("team-a").disk_bytes, 1000u);
  EXPECT_EQ(read->of("team-a").remote_bytes, 1'000'000u);
  EXPECT_EQ(read->of("team-a").share, 2);
  EXPECT_EQ(read->of("team-b").disk_bytes, 0u);
  EXPECT_EQ(read->of("team-b").share, 0.5);
}

TEST(QuotasFile, WithoutAFileThereAreNone) {
  const auto none = load_quotas("");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->enabled);
  // An empty file shares a full tier fairly.
  const auto empty = parse_quotas("", "quotas.toml");
  ASSERT_TRUE(empty.ok());
  EXPECT_TRUE(empty->enabled);
  EXPECT_NE(load_quotas("/nowhere/quotas.toml").status().message().find("cannot be read"),
            std::string::npos);
}

TEST(QuotasFile, SaysWhatIsWrong) {
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string message = refused(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says("team = 1", "quotas.toml, namespace 'team' must be a table");
  says("[team]\nbytes = 1",
       "unknown entry 'bytes'; use dram_bytes, disk_bytes, remote_bytes or share");
  says("[team]\ndram_bytes = -1", "dram_bytes must be a number of bytes");
  says("[team]\ndisk_bytes = 'much'", "disk_bytes must be a number of bytes");
  says("[team]\ndisk_bytes = 1.5", "disk_bytes must be a number of bytes");
  for (const char* share : {"0", "-1", "'2'", "nan", "inf"})
    says(std::string("[team]\nshare = ") + share, "share must be a number");
  says("[team\n", "line 1");
  for (const char* name : {"'team a'", "'-team'", "'*a'", "'ä'"})
    says(std::string("[") + name + "]\nshare = 1", "no namespace can have this name");
}

}  // namespace
}  // namespace quire
