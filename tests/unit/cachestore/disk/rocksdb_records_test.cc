#include "cachestore/disk/rocksdb_records.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <span>
#include <string>

#include "tests/support/harness/test_store.h"

namespace quire::rocksdb_internal {
namespace {

namespace fs = std::filesystem;

/// Has every write that lets a file grow beyond so many bytes fail, until destroyed.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit small = before_;
    small.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallFiles() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  SmallFiles(const SmallFiles&) = delete;
  SmallFiles& operator=(const SmallFiles&) = delete;

 private:
  rlimit before_{};
};

class RecordDatabaseTest : public ::testing::Test {
 protected:
  Status put(RecordDatabase& db, const std::string& key, std::size_t bytes = 5) const {
    const RecordWrite write{Family::kMeta, key, std::string(bytes, 'v')};
    return db.write(std::span(&write, 1), Sync::kYes);
  }
  /// Notes a write as acknowledged that the database lacks, as after a log lost its end.
  void lose_a_write(const StoreFolder& folder, std::uint64_t number, std::int64_t ms) const {
    WriteLedger ledger;
    ASSERT_OK(ledger.open(folder.ledger()));
    ledger.add(number, 1U << static_cast<unsigned>(Family::kMeta), ms);
  }
  /// Has a write fail, after which the database is opened again.
  void open_again(RecordDatabase& db) const {
    {
      const SmallFiles none(0);
      ASSERT_FALSE(put(db, "failed").ok());
    }
    bool reopened = false;
    ASSERT_OK(db.recover(&reopened));
    ASSERT_TRUE(reopened);
  }

  test::TempFolder parent;
  const std::string path = parent.path("store");
  const RocksDbTierOptions options{.direct_io = false};
};

/// 256 later writes would hide what the log has lost.
TEST_F(RecordDatabaseTest, OneThatIsOpenedAgainIsComparedWithTheLedger) {
  const auto folder = StoreFolder::open(path, /*read_only=*/false);
  ASSERT_OK(folder);
  {
    RecordDatabase db(*folder, options);
    ASSERT_OK(db.open());
    for (const char* key : {"a", "b", "c"}) ASSERT_OK(put(db, key));
    lose_a_write(*folder, 9, 1234);
    open_again(db);
    EXPECT_EQ(db.lost_writes().count, 1u);
    EXPECT_EQ(db.lost_writes().first_ms, 1234);
    EXPECT_EQ(db.get(Family::kMeta, "c").value_or(""), "vvvvv");
    ASSERT_OK(put(db, "d"));
    EXPECT_GT(db.last_write(), 9u) << "no number is given twice";
  }
  for (int start = 0; start < 2; ++start) {
    RecordDatabase db(*folder, options);
    ASSERT_OK(db.open());
    EXPECT_FALSE(db.found_lost_writes());
    EXPECT_EQ(db.lost_writes().count, 1u) << "until it is told";
    if (start == 1) db.lost_writes_told();
  }
  RecordDatabase db(*folder, options);
  ASSERT_OK(db.open());
  EXPECT_EQ(db.lost_writes().count, 0u);
}

TEST_F(RecordDatabaseTest, OneThatIsOpenedAgainAndHasAllLacksNothing) {
  const auto folder = StoreFolder::open(path, /*read_only=*/false);
  ASSERT_OK(folder);
  RecordDatabase db(*folder, options);
  ASSERT_OK(db.open());
  for (const char* key : {"a", "b", "c"}) ASSERT_OK(put(db, key));
  open_again(db);
  EXPECT_EQ(db.lost_writes().count, 0u) << "a write that failed was not acknowledged";
  EXPECT_FALSE(fs::exists(folder->lost_writes()));
}

TEST_F(RecordDatabaseTest, LostWritesThatCannotBeNotedAreFoundOnceMore) {
  const auto folder = StoreFolder::open(path, /*read_only=*/false);
  ASSERT_OK(folder);
  {
    RecordDatabase db(*folder, options);
    ASSERT_OK(db.open());
    ASSERT_OK(put(db, "a"));
  }
  lose_a_write(*folder, 9, 1234);
  fs::create_directory(folder->lost_writes() + ".tmp");
  for (int start = 0; start < 2; ++start) {
    RecordDatabase db(*folder, options);
    ASSERT_OK(db.open());
    EXPECT_EQ(db.lost_writes().count, 1u);
  }
}

}  // namespace
}  // namespace quire::rocksdb_internal
