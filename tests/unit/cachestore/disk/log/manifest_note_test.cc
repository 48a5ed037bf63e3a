#include "cachestore/disk/log/manifest_note.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/support/harness/log_file.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

TEST(ManifestNote, IsReadAsItWasWritten) {
  test::TempFolder folder;
  const std::string path = folder.path("EDITS");
  EXPECT_FALSE(ManifestNote::read(path, "id"));
  ManifestNote{"MANIFEST-000123", 1'234'567, "id"}.write(path);
  ManifestNote{"MANIFEST-000124", 89, "id"}.write(path);  // over a longer one
  const auto note = ManifestNote::read(path, "id");
  ASSERT_TRUE(note);
  EXPECT_EQ(note->manifest, "MANIFEST-000124");
  EXPECT_EQ(note->bytes, 89u);
  EXPECT_FALSE(ManifestNote::read(path, "another")) << "it is of another record";
}

TEST(ManifestNote, ARecordIsCalledWhatItsDatabaseSays) {
  test::TempFolder folder;
  EXPECT_EQ(record_identity(folder.path("none")), "");
  std::ofstream(folder.path("IDENTITY")) << "f00d-cafe\n";
  EXPECT_EQ(record_identity(folder.path("")), "f00d-cafe");
}

TEST(ManifestNote, DamageMakesItNone) {
  const std::string text = ManifestNote{"MANIFEST-000123", 4567, "id"}.text();
  ASSERT_TRUE(ManifestNote::parse(text));
  for (std::size_t at = 0; at + 1 < text.size(); ++at) {
    std::string damaged = text;
    damaged[at] ^= 1;
    EXPECT_FALSE(ManifestNote::parse(damaged)) << at;
    EXPECT_FALSE(ManifestNote::parse(text.substr(0, at))) << at;
  }
  EXPECT_FALSE(ManifestNote::parse(std::string(40'000, 'x')));
  for (const char* name : {"", "CURRENT", "MANIFEST-", "MANIFEST-12x"})
    EXPECT_FALSE(ManifestNote::parse(ManifestNote{name, 1}.text())) << name;
}

TEST(ManifestNote, EditsThatWereNotedMustBeInTheManifestOrBehindIt) {
  test::LogFile log;
  for (const char* edit : {"first", "second", "third"}) log.add(edit);
  const ManifestNote note{"MANIFEST-000005", log.ends[1]};
  const auto cut = [&](std::size_t bytes) { return log.bytes.substr(0, bytes); };
  EXPECT_TRUE(note.is_in("MANIFEST-000005", log.bytes));
  EXPECT_TRUE(note.is_in("MANIFEST-000005", cut(log.ends[1])));
  EXPECT_TRUE(note.is_in("MANIFEST-000005", cut(log.ends[2] - 1)));
  EXPECT_FALSE(note.is_in("MANIFEST-000005", cut(log.ends[1] - 1)));
  EXPECT_FALSE(note.is_in("MANIFEST-000005", cut(log.ends[0])));
  EXPECT_FALSE(note.is_in("MANIFEST-000005", cut(log.ends[0]) + std::string(1000, '\0')));
  EXPECT_FALSE(note.is_in("MANIFEST-000004", log.bytes));
  EXPECT_TRUE(note.is_in("MANIFEST-000006", cut(log.ends[0])));
  // RocksDB says so itself.
  EXPECT_TRUE(note.is_in("MANIFEST-000005", ""));
  EXPECT_TRUE(note.is_in("", ""));
}

}  // namespace
}  // namespace quire
