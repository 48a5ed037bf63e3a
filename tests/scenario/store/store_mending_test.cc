// A store's folder is mended by the one process that has locked it, and nobody else writes there.
// A repair puts its record in the place of the old one wholly or not at all.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/disk/folder/store_marker.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/repair.h"
#include "cachestore/store_admin.h"
#include "tests/support/harness/damaged_store.h"
#include "tests/support/harness/interrupted_steps.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// Not a test: the process that repair_and_end() starts.
TEST(StoreMendingChild, DISABLED_Repairs) {
  const char* path = std::getenv("QUIRE_MENDING_CHILD");
  if (!path) GTEST_SKIP() << "runs within other tests";
  const test::InterruptedStep step(test::env_int("QUIRE_MENDING_STEP", 0), /*ends=*/true);
  ::_exit(repair_store({path, /*dry_run=*/false, /*keep_kv=*/true}).ok() ? 0 : 2);
}

/// The lock of a folder, as another process has it.
class OthersLock {
 public:
  explicit OthersLock(const std::string& root)
      : fd_(::open((root + "/LOCK").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
        is_held_(::flock(fd_, LOCK_EX | LOCK_NB) == 0) {}
  ~OthersLock() { ::close(fd_); }
  OthersLock(const OthersLock&) = delete;
  OthersLock& operator=(const OthersLock&) = delete;
  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool is_held_;
};

class StoreMending : public StoreDamage {
 protected:
  /// Expects that who opens or repairs the store is told that another process has it.
  void expect_in_use() {
    const auto says_so = [](const Status& s) {
      EXPECT_EQ(s.code(), Code::kFailedPrecondition) << s.to_string();
      EXPECT_NE(s.message().find("is in use by"), std::string::npos) << s.to_string();
    };
    for (const OnDamage choice : {OnDamage::kRefuse, OnDamage::kSalvage}) {
      options.on_damage = choice;
      says_so(open().status());
    }
    for (const bool dry_run : {true, false})
      says_so(repair_store({options.path, dry_run, /*keep_kv=*/true}).status());
  }
  /// Makes a store whose manifest has lost its last edits, which only EDITS knows. Without EDITS
  /// RocksDB would delete the tables of all later documents without a word.
  void lose_edits() {
    fs::remove_all(options.path);
    if (!fs::exists(folder.path("kept"))) {
      write_documents(/*crash=*/true, 0, kBefore);
      write_documents(/*crash=*/true, kBefore, kAll - kBefore);
      const auto ends = log_records(read(manifest())).ends;
      ASSERT_GT(ends.size(), 4u);
      fs::resize_file(manifest(), ends[ends.size() - 5]);
      fs::rename(options.path, folder.path("kept"));
    }
    fs::copy(folder.path("kept"), options.path, fs::copy_options::recursive);
  }
  /// Repairs the store in a process that ends before the n-th step. Returns its exit status.
  int repair_and_end(int n) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("QUIRE_MENDING_CHILD", options.path.c_str(), 1);
      ::setenv("QUIRE_MENDING_STEP", std::to_string(n).c_str(), 1);
      ::execl("/proc/self/exe", "child", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_filter=StoreMendingChild.*", nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// Expects that a start has all documents or refuses, and that one which salvages has them.
  void expect_nothing_lost() {
    options.on_damage = OnDamage::kRefuse;
    if (auto store = open(); store.ok()) {
      EXPECT_EQ(first_documents(**store, kAll), kAll);
    } else {
      EXPECT_EQ(store.code(), Code::kCorruption) << store.status().to_string();
    }
    options.on_damage = OnDamage::kSalvage;
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(first_documents(**store, kAll), kAll);
    EXPECT_FALSE(fs::exists(options.path + "/NEW_RECORD"));
    store->reset();
    EXPECT_OK(open());
  }

  static constexpr std::uint64_t kBefore = 4;
  static constexpr std::uint64_t kAll = 304;  // more than the record has slots for numbers
};

/// What another process is writing looks as a crash leaves it.
TEST_F(StoreMending, AFolderInUseIsNotMended) {
  const std::string root = options.path, db = root + "/db";
  // An edit of 700 bytes that is being written.
  const std::string torn = std::string("abcd") + "\xBC\x02" + '\x01' + std::string(505, 'x');
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"a new manifest, of which CURRENT does not know yet",
       [&] {
         fs::rename(manifest(), db + "/MANIFEST-000999");
         EXPECT_FALSE(fs::exists(manifest()));
       }},
      {"CURRENT that is being written", [&] { fs::resize_file(db + "/CURRENT", 5); }},
      {"an edit that is being appended", [&] { write(manifest(), read(manifest()) + torn); }},
      {"a record that is being made",
       [&] {
         fs::remove_all(db);
         fs::create_directory(db);
         fs::remove(root + "/LEDGER");
         write(db + "/MANIFEST-000001", "");
       }},
      {"a marker that is damaged", [&] { write(root + "/STORE", "quire store layout 3\n"); }},
      {"a record that is being replaced",
       [&] {
         fs::create_directory(root + "/repair");
         fs::rename(db, root + "/repair/db");
         write(root + "/NEW_RECORD", root + "/repair/db\n");
       }},
      {"a ledger that is a folder",
       [&] {
         fs::remove(root + "/LEDGER");
         fs::create_directory(root + "/LEDGER");
       }},
      {"a folder without a store", [&] {
         fs::remove_all(root);
         fs::create_directory(root);
       }}};
  for (const auto& [name, damage] : cases) {
    SCOPED_TRACE(name);
    fs::remove_all(root);
    write_documents(/*crash=*/true);
    damage();
    const OthersLock other(root);
    ASSERT_TRUE(other.is_held());
    const auto before = contents();
    expect_in_use();
    EXPECT_EQ(contents(), before);
  }
}

TEST_F(StoreMending, ARepairThatFailsAtAnyStepLosesNothing) {
  bool failed = true;
  for (int n = 0; failed; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100);
    lose_edits();
    {
      const test::InterruptedStep step(n);
      const auto report = repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true});
      failed = step.has_failed();
      EXPECT_EQ(report.ok(), !failed) << report.status().to_string();
    }
    if (n == 0) {
      EXPECT_TRUE(failed);
      for (const auto& e : fs::directory_iterator(options.path))
        EXPECT_FALSE(e.path().filename().string().starts_with("damaged-")) << "nothing was done";
      options.on_damage = OnDamage::kRefuse;
      EXPECT_EQ(open().code(), Code::kCorruption) << "EDITS is where it was";
    }
    expect_nothing_lost();
  }
}

TEST_F(StoreMending, ARepairThatEndsBeforeAnyStepLosesNothing) {
  for (int n = 0;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 100);
    lose_edits();
    const int status = repair_and_end(n);
    if (status == 0) break;  // there is no such step
    ASSERT_EQ(status, test::kEndedAtStep);
    // Who goes on ends as well.
    if (n % 2 == 1) {
      EXPECT_NE(repair_and_end(n / 2), 2);
    }
    expect_nothing_lost();
  }
}

/// What a start would mend is mended in a copy, so that a repair without --apply says what one with
/// it would do.
TEST_F(StoreMending, ADryRepairChangesNothing) {
  const std::string root = options.path, db = root + "/db";
  struct Case {
    const char* name;
    std::function<void()> damage;
    const char* line;  // of the report; empty: none
  };
  const std::vector<Case> cases = {
      {"nothing", [] {}, ""},
      {"CURRENT without its line end",
       [&] { fs::resize_file(db + "/CURRENT", fs::file_size(db + "/CURRENT") - 1); },
       "CURRENT of the record is damaged or lost"},
      {"CURRENT is a folder",
       [&] {
         fs::remove(db + "/CURRENT");
         fs::create_directory(db + "/CURRENT");
       },
       "CURRENT of the record is damaged or lost"},
      {"the end of the manifest is torn",
       [&] { write(manifest(), read(manifest()) + "abcd\xBC\x02\x01" + std::string(505, 'x')); },
       "the end of the manifest is torn, as after a power failure"},
      {"STORE has a flipped bit", [&] { write(root + "/STORE", "quire store layout 3\n"); },
       "the marker STORE is damaged or lost"},
      {"STORE is gone", [&] { fs::remove(root + "/STORE"); },
       "the marker STORE is damaged or lost"},
      {"IDENTITY is empty", [&] { fs::resize_file(db + "/IDENTITY", 0); }, ""},
      {"LEDGER is gone", [&] { fs::remove(root + "/LEDGER"); }, ""},
      {"LEDGER is a folder",
       [&] {
         fs::remove(root + "/LEDGER");
         fs::create_directory(root + "/LEDGER");
       },
       ""}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    fs::remove_all(root);
    write_documents(/*crash=*/true);
    c.damage();
    auto before = contents();
    const auto report = repair_store({root, /*dry_run=*/true, /*keep_kv=*/true});
    ASSERT_OK(report);
    EXPECT_EQ(report->documents, kDocuments);
    EXPECT_EQ(report->segments, kDocuments);
    EXPECT_FALSE(report->may_lack_documents) << summary(*report);
    const std::vector<std::string> lines(*c.line == '\0' ? 0 : 1, c.line);
    EXPECT_EQ(report->damage, lines);
    auto after = contents();
    for (auto* all : {&before, &after}) all->erase(root + "/LOCK");  // who held it last
    EXPECT_EQ(after, before);
    ASSERT_OK(repair_store({root, /*dry_run=*/false, /*keep_kv=*/true}));
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
  }
}

TEST_F(StoreMending, ADryRepairNamesFilesWhereTheyAre) {
  write_documents(/*crash=*/false, 0, 2 * kDocuments);
  ASSERT_FALSE(files(".sst").empty());
  for (const auto& table : files(".sst")) {
    std::string bytes = read(table);
    bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 0x10);
    write(table, bytes);
  }
  const auto before = contents();
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_FALSE(report->damage.empty());
  for (const std::string& line : report->damage)
    EXPECT_EQ(line.find("/repair/look"), std::string::npos) << line;
  auto after = contents();
  after[options.path + "/LOCK"] = before.at(options.path + "/LOCK");
  EXPECT_EQ(after, before);
}

TEST_F(StoreMending, ADryRepairLeavesOneThatWasInterruptedToBeEnded) {
  lose_edits();
  ASSERT_EQ(repair_and_end(2), test::kEndedAtStep);
  ASSERT_TRUE(fs::exists(options.path + "/NEW_RECORD"));
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  EXPECT_EQ(report.code(), Code::kFailedPrecondition);
  EXPECT_NE(report.status().message().find("was interrupted"), std::string::npos);
  expect_nothing_lost();
  EXPECT_FALSE(fs::exists(options.path + "/repair"));
}

TEST_F(StoreMending, ADryRepairMakesNoFolder) {
  EXPECT_EQ(repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true}).code(),
            Code::kNotFound);
  EXPECT_FALSE(fs::exists(options.path));
}

TEST_F(StoreMending, AFolderThatIsRefusedStaysAsItIs) {
  const std::string root = options.path;
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"a newer layout", [&] { write(root + "/STORE", StoreMarker::text(3)); }},
      {"a newer layout with a torn manifest",
       [&] {
         write(root + "/STORE", StoreMarker::text(3));
         write(manifest(), read(manifest()) + "abcdefgh");
         write(root + "/db/CURRENT", manifest().filename().string());
       }},
      {"something else", [&] {
         fs::remove_all(root);
         fs::create_directory(root);
         write(root + "/letter.txt", "somebody's");
       }}};
  for (const auto& [name, change] : cases) {
    SCOPED_TRACE(name);
    fs::remove_all(root);
    write_documents(/*crash=*/true);
    change();
    const auto before = contents();
    for (const bool read_only : {false, true}) {
      options.read_only = read_only;
      EXPECT_FALSE(open().ok());
    }
    options.read_only = false;
    for (const bool dry_run : {true, false})
      EXPECT_FALSE(repair_store({options.path, dry_run, /*keep_kv=*/true}).ok());
    EXPECT_EQ(contents(), before);
  }
}

TEST_F(StoreMending, AStartThatFailsLeavesTheFolderUnlocked) {
  const std::string root = options.path;
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"not what was sealed", [&] { write(manifest(), read(manifest()) + "x"); }},
      {"a manifest that lost edits",
       [&] {
         fs::remove(root + "/SEAL");
         ManifestNote{"MANIFEST-999999", 1'000'000, record_identity(root + "/db")}.write(root +
                                                                                         "/EDITS");
       }},
      {"a manifest that cannot be read",
       [&] {
         fs::remove(root + "/SEAL");
         fs::resize_file(manifest(), 10);
       }},
      {"a marker in whose place nothing can be put",
       [&] {
         write(root + "/STORE", "garbage");
         fs::create_directory(root + "/STORE.tmp");
         for (int i = 0; i < 1000; ++i)
           write(root + "/STORE.tmp.damaged" + (i == 0 ? "" : "-" + std::to_string(i)), "");
       }},
      {"options that are refused", [&] { options.copy_path = folder.path("no/such/folder"); }}};
  for (const auto& [name, damage] : cases) {
    SCOPED_TRACE(name);
    options.copy_path.clear();
    fs::remove_all(root);
    write_documents(/*crash=*/false);
    damage();
    EXPECT_FALSE(open().ok());
    EXPECT_TRUE(OthersLock(root).is_held());
    (void)repair_store({root, /*dry_run=*/true, /*keep_kv=*/true});
    EXPECT_TRUE(OthersLock(root).is_held());
  }
}

TEST_F(StoreMending, OfTwoFirstStartsOneHasTheStore) {
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    fs::remove_all(options.path);
    Result<std::unique_ptr<Store>> first = Status::internal("not opened"), second = first.status();
    {
      std::thread other([&] { first = open(); });
      second = open();
      other.join();
    }
    ASSERT_NE(first.ok(), second.ok());
    const Status refused = first.ok() ? second.status() : first.status();
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << refused.to_string();
    auto& store = first.ok() ? *first : *second;
    ASSERT_OK(test::put_document(*store, id_of(0), {0}));
    store.reset();
    auto again = open();
    ASSERT_OK(again);
    EXPECT_EQ(documents(**again).size(), 1u);
  }
}

TEST_F(StoreMending, ALockThatIsAFolderIsSetAsideOnce) {
  write_documents(/*crash=*/true);
  fs::remove(options.path + "/LOCK");
  fs::create_directory(options.path + "/LOCK");
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
    EXPECT_EQ(open().code(), Code::kFailedPrecondition);
  }
  EXPECT_TRUE(fs::is_directory(options.path + "/LOCK.damaged"));
  EXPECT_FALSE(fs::exists(options.path + "/LOCK.damaged-1"));
}

}  // namespace
}  // namespace quire
