// The second copy of a store's records: what the records lose comes back from it, and it never
// brings back what is older.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cachestore/disk/backup.h"
#include "cachestore/disk/repair.h"
#include "cachestore/store_admin.h"
#include "tests/support/harness/damaged_store.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class StoreCopy : public StoreDamage {
 protected:
  void SetUp() override {
    StoreDamage::SetUp();
    options.copy_path = folder.path("copy");
  }
  void begin_anew() {
    fs::remove_all(options.path);
    fs::remove_all(options.copy_path);
  }
  /// Opens the store and expects that it has so many documents, and nothing lost to tell unless
  /// `lost`.
  void expect_all(std::uint64_t count, bool brought_back, bool lost = false) {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), count);
    const StoreStats stats = (*store)->stats();
    EXPECT_EQ(stats.lost.count > 0, lost);
    EXPECT_TRUE(stats.record_copy.kept);
    EXPECT_FALSE(stats.record_copy.behind);
    EXPECT_EQ(stats.record_copy.brought_back > 0, brought_back);
  }
  /// Expects that the copy has so many documents.
  void expect_in_copy(std::uint64_t count) {
    StoreOptions of_copy = options;
    of_copy.path = options.copy_path;
    of_copy.copy_path.clear();
    of_copy.read_only = true;
    auto store = open_store(of_copy);
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), count);
  }
  /// Opens the store, which is to go on with so many documents and say that its copy is behind.
  void expect_without_copy(std::uint64_t count) {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), count);
    EXPECT_TRUE((*store)->stats().record_copy.kept);
    EXPECT_TRUE((*store)->stats().record_copy.behind);
  }
  /// Takes the copy's disk away, and puts it back where it was.
  void take_copy_away() { fs::rename(disk_of_copy(), folder.path("away")); }
  void put_copy_back() {
    fs::remove_all(disk_of_copy());
    fs::rename(folder.path("away"), disk_of_copy());
  }
  fs::path disk_of_copy() const { return fs::path(options.copy_path).parent_path(); }
  static constexpr int kCannot = 77;
  /// Opens the store in a child process whose mounts, made by `mounts`, nobody else sees. Returns
  /// what `use` returns, or kCannot. The store is not closed, since RocksDB's threads of the parent
  /// are not in the child.
  int with_own_mounts(const std::function<bool()>& mounts, const std::function<int(Store&)>& use) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (::unshare(CLONE_NEWNS) != 0) {
        const std::string map = "0 " + std::to_string(::getuid()) + " 1";
        if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(kCannot);
        write("/proc/self/uid_map", map);
      }
      (void)::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      if (!mounts()) ::_exit(kCannot);
      auto store = open();
      ::_exit(store.ok() ? use(**store) : 2);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  /// Begins with a copy on a disk of its own.
  void begin_with_disk() {
    begin_anew();
    options.copy_path = folder.path("disk") + "/copy";
    fs::remove_all(disk_of_copy());
    fs::remove_all(folder.path("away"));
    fs::create_directory(disk_of_copy());
  }
  void damage_manifest() {
    for (const auto& file : files(""))
      if (file.filename().string().starts_with("MANIFEST-")) fs::resize_file(file, 10);
  }
};

TEST_F(StoreCopy, HasWhatWasAcknowledged) {
  for (const bool crash : {true, false}) {
    SCOPED_TRACE(crash);
    begin_anew();
    write_documents(crash);
    expect_in_copy(kDocuments);
    expect_all(kDocuments, /*brought_back=*/false);
    expect_in_copy(kDocuments);
    // Deleted ones go from both.
    {
      auto store = open();
      ASSERT_OK(store);
      ASSERT_OK((*store)->delete_document("default", id_of(3)));
    }
    expect_in_copy(kDocuments - 1);
    expect_all(kDocuments - 1, false);
  }
}

TEST_F(StoreCopy, BringsBackWhatTheLogLost) {
  const std::pair<const char*, std::function<void(const fs::path&)>> cases[] = {
      {"emptied", [](const fs::path& log) { fs::resize_file(log, 0); }},
      {"deleted", [](const fs::path& log) { fs::remove(log); }},
      {"cut", [](const fs::path& log) { fs::resize_file(log, fs::file_size(log) / 2); }},
  };
  for (const auto& [name, damage] : cases) {
    for (const bool ledger : {true, false}) {
      SCOPED_TRACE(std::string(name) + (ledger ? "" : ", with the ledger"));
      begin_anew();
      write_documents(/*crash=*/false, 0, 4);
      write_documents(/*crash=*/true, 4, kDocuments - 4);
      damage(files(".log").back());
      if (!ledger) empty_ledgers(options.path);
      expect_all(kDocuments, /*brought_back=*/true);
      expect_all(kDocuments, /*brought_back=*/false);
    }
  }
}

TEST_F(StoreCopy, ARepairTakesTheRecordFromIt) {
  write_documents(/*crash=*/true);
  damage_manifest();
  // The tables are gone, too: without the copy nothing would be left.
  for (const char* kind : {".sst", ".log"})
    for (const auto& file : files(kind)) fs::remove(file);
  EXPECT_EQ(open().code(), Code::kCorruption);
  const auto dry = repair_store(
      {options.path, /*dry_run=*/true, /*keep_kv=*/true, options.copy_path});
  ASSERT_OK(dry);
  EXPECT_EQ(dry->documents, kDocuments);
  EXPECT_FALSE(dry->may_lack_documents);
  EXPECT_NE(dry->damage.back().find(options.copy_path), std::string::npos);
  options.on_damage = OnDamage::kSalvage;
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
    EXPECT_NE((*store)->stats().salvaged, "");
  }
  options.on_damage = OnDamage::kRefuse;
  expect_all(kDocuments, /*brought_back=*/false);
  EXPECT_FALSE(fs::exists(options.copy_path + "/earlier")) << "both are alike";
  write_documents(/*crash=*/true, kDocuments, 2);
  expect_all(kDocuments + 2, false);
  expect_in_copy(kDocuments + 2);
}

TEST_F(StoreCopy, ARepairTakesNoCopyThatTheRecordWentOnWithout) {
  const std::string copy = options.copy_path;
  write_documents(/*crash=*/false, 0, 2);
  options.copy_path.clear();
  write_documents(/*crash=*/false, 2, 4);
  empty_ledgers(options.path);  // as each start leaves it
  options.copy_path = copy;
  damage_manifest();
  EXPECT_EQ(open().code(), Code::kCorruption);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 6u) << (*store)->stats().salvaged;
}

TEST_F(StoreCopy, ARepairAddsWhatTheRecordHasToACopyOfUnknownAge) {
  const std::string copy = options.copy_path;
  write_documents(/*crash=*/false, 0, 2);
  options.copy_path.clear();
  write_documents(/*crash=*/false, 2, 4);
  empty_ledgers(options.path);
  options.copy_path = copy;
  // Nothing says any more whether the record went on without the copy.
  damage_manifest();
  for (const auto& file : files(".log")) fs::remove(file);
  for (const auto& file : files(".sst"))
    if (read(file).find("record_copy") != std::string::npos) fs::remove(file);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 6u) << (*store)->stats().salvaged;
  EXPECT_NE((*store)->stats().salvaged.find("there may be more"), std::string::npos);
  EXPECT_NE((*store)->stats().salvaged.find("some may be back"), std::string::npos);
  EXPECT_TRUE(fs::exists(copy + "/earlier/db")) << "it may have what the record has not";
}

/// What a loss of power leaves of writes that were under way: a later block of the log, and not an
/// earlier one.
TEST_F(StoreCopy, ARepairTakesNothingFromBehindAGapOfIt) {
  constexpr std::uint64_t kMany = 400;  // over many blocks of the log
  write_documents(/*crash=*/true, 0, kMany);
  damage_manifest();
  for (const char* kind : {".sst", ".log"})
    for (const auto& file : files(kind)) fs::remove(file);
  empty_ledgers(options.path);
  for (const auto& e : fs::directory_iterator(options.copy_path + "/db")) {
    if (e.path().extension() == ".log") lose_a_record(e.path(), 300);
  }
  empty_ledgers(options.copy_path);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  const std::uint64_t there = first_documents(**store, kMany);
  EXPECT_GT(there, 0u);
  EXPECT_LT(there, kMany);
  EXPECT_NE((*store)->stats().salvaged.find("there may be more"), std::string::npos);
}

TEST_F(StoreCopy, ADamagedCopyIsMadeAnew) {
  const auto files_of_copy = [this] {
    std::vector<fs::path> out;
    for (const auto& e : fs::recursive_directory_iterator(options.copy_path))
      if (e.is_regular_file() && e.file_size() > 0 && e.path().filename() != "LOCK")
        out.push_back(fs::relative(e.path(), options.copy_path));
    return out;
  };
  for (const bool crash : {true, false}) {
    begin_anew();
    write_documents(crash);
    for (const fs::path& name : files_of_copy()) {
      if (name == "STORE") continue;  // a newer layout would be refused
      for (const bool cut : {true, false}) {
        SCOPED_TRACE(name.string() + (cut ? " cut" : " flipped") + (crash ? " crash" : ""));
        begin_anew();
        write_documents(crash);
        std::vector<fs::path> now = files_of_copy();
        const fs::path file = options.copy_path /
                              (std::ranges::count(now, name) > 0 ? name : now.front());
        std::string bytes = read(file);
        if (cut)
          bytes.resize(bytes.size() / 2);
        else
          bytes[bytes.size() / 2] ^= 4;
        write(file, bytes);
        // What is read in the background is made anew by the next start.
        bool behind = false;
        {
          auto store = open();
          ASSERT_OK(store);
          EXPECT_EQ(documents(**store).size(), kDocuments);
          for (int i = 0; i < 1000 && !(*store)->stats().record_copy.read_whole && !behind; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            behind = (*store)->stats().record_copy.behind;
          }
        }
        if (behind) expect_all(kDocuments, /*brought_back=*/false);
        expect_in_copy(kDocuments);
      }
    }
  }
}

TEST_F(StoreCopy, WhatIsOlderBringsNothingBack) {
  const std::string copy = options.copy_path;
  write_documents(/*crash=*/true, 0, 4);
  options.copy_path.clear();
  write_documents(/*crash=*/true, 4, 4);
  {
    auto store = open();
    ASSERT_OK(store);
    ASSERT_OK((*store)->delete_document("default", id_of(0)));
    EXPECT_FALSE((*store)->stats().record_copy.kept);
  }
  // The record then loses its last writes, and the copy comes back into use.
  write_documents(/*crash=*/true, 8, 2);
  fs::resize_file(files(".log").back(), 0);
  options.copy_path = copy;
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), 7u) << "the deleted one stays deleted";
    EXPECT_EQ((*store)->stats().lost.count, 2u);
    EXPECT_EQ((*store)->stats().record_copy.brought_back, 0u);
    (*store)->lost_writes_told();
  }
  expect_in_copy(7);
  // A copy of another store.
  const std::string first = options.path;
  options.path = folder.path("other");
  options.copy_path.clear();
  write_documents(/*crash=*/true, 10, 2);
  options.copy_path = copy;
  expect_all(2, false);
  expect_in_copy(2);
  options.path = first;
  expect_all(7, false);
  expect_in_copy(7);
  int kept = 0;
  for (const auto& e : fs::directory_iterator(copy))
    kept += e.path().filename().string().starts_with("earlier") && fs::exists(e.path() / "db");
  EXPECT_EQ(kept, 3) << "what was in the copy is never thrown away";
}

TEST_F(StoreCopy, AStoreWhoseDiskWasLostBeginsWithIt) {
  for (const bool crash : {true, false}) {
    begin_anew();
    write_documents(crash);
    fs::remove_all(options.path);
    expect_all(kDocuments, /*brought_back=*/true);
    expect_all(kDocuments, /*brought_back=*/false);
    expect_in_copy(kDocuments);
  }
}

/// What a damaged record is compared with stays as it was.
TEST_F(StoreCopy, DamageOfTheRecordDoesNotReachIt) {
  write_documents(/*crash=*/false, 0, 8);
  write_documents(/*crash=*/true, 8, kDocuments - 8);
  for (const auto& table : files(".sst")) {
    std::string bytes = read(table);
    for (std::size_t at = 20; at < bytes.size() / 2; at += 50) bytes[at] ^= 1;
    write(table, bytes);
  }
  for (int start = 0; start < 2; ++start) EXPECT_EQ(open().code(), Code::kCorruption);
  EXPECT_FALSE(fs::exists(options.copy_path + "/earlier"));
  expect_in_copy(kDocuments);
  options.on_damage = OnDamage::kSalvage;
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
  }
  expect_in_copy(kDocuments);
}

/// As `quire store` does.
TEST_F(StoreCopy, WhoOpensTheStoreWithoutItChangesNothingOfIt) {
  const std::string copy = options.copy_path;
  write_documents(/*crash=*/false, 0, 4);
  options.copy_path.clear();
  { ASSERT_OK(open()); }
  write_documents(/*crash=*/true, 4, 2);
  options.copy_path = copy;
  expect_all(6, /*brought_back=*/false);
  expect_in_copy(6);
  EXPECT_FALSE(fs::exists(copy + "/earlier"));
}

TEST_F(StoreCopy, ARestoredBackupIsNotUndone) {
  const std::string backups = folder.path("backups");
  {
    auto store = open_admin_store(options);
    ASSERT_OK(store);
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_OK(test::put_document(**store, id_of(i), {i}));
    ASSERT_OK((*store)->backup(backups, 1));
    for (std::uint64_t i = 4; i < 8; ++i) ASSERT_OK(test::put_document(**store, id_of(i), {i}));
  }
  fs::remove_all(options.path);
  ASSERT_OK(restore_store(backups, options.path));
  expect_all(4, /*brought_back=*/false);
  expect_in_copy(4);
  EXPECT_TRUE(fs::exists(options.copy_path + "/earlier/db")) << "it is kept";
  expect_all(4, false);
}

TEST_F(StoreCopy, ItsFolderIsChecked) {
  options.copy_path = folder.path("missing") + "/copy";
  const auto missing = open();
  EXPECT_EQ(missing.status().field(), "disk.copy_path") << missing.status().to_string();
  fs::create_directory(folder.path("foreign"));
  write(folder.path("foreign") + "/notes.txt", "not a store");
  options.copy_path = folder.path("foreign");
  EXPECT_EQ(open().status().field(), "disk.copy_path");
  for (const std::string& inside : {options.path, options.path + "/copy", options.path + "/db"}) {
    options.copy_path = inside;
    EXPECT_EQ(open().status().field(), "disk.copy_path") << inside;
  }
}

TEST_F(StoreCopy, ACopyThatIsAwayIsSaidAndTheStoreGoesOn) {
  for (const bool crash : {true, false}) {
    SCOPED_TRACE(crash);
    begin_with_disk();
    write_documents(crash);
    take_copy_away();
    expect_without_copy(kDocuments);
    EXPECT_FALSE(fs::exists(disk_of_copy())) << "nothing is made where a disk is missing";
    write_documents(crash, kDocuments, 2);
    {
      auto store = open();
      ASSERT_OK(store);
      ASSERT_OK((*store)->delete_document("default", id_of(3)));
    }
    put_copy_back();
    expect_all(kDocuments + 1, /*brought_back=*/false);
    expect_in_copy(kDocuments + 1);
    EXPECT_FALSE(fs::exists(options.copy_path + "/earlier")) << "both are alike";
    expect_all(kDocuments + 1, false);
  }
}

TEST_F(StoreCopy, ACopyThatCannotBeLookedAtIsSaidAndTheStoreGoesOn) {
  begin_with_disk();
  write_documents(/*crash=*/true);
  take_copy_away();
  fs::create_directory(disk_of_copy());
  fs::create_directory_symlink(options.copy_path, options.copy_path);  // an error of every look
  expect_without_copy(kDocuments);
  put_copy_back();
  expect_all(kDocuments, /*brought_back=*/false);
}

TEST_F(StoreCopy, ANewDiskForItIsFilled) {
  begin_with_disk();
  write_documents(/*crash=*/true);
  take_copy_away();
  expect_without_copy(kDocuments);
  fs::create_directory(disk_of_copy());
  expect_all(kDocuments, /*brought_back=*/false);
  expect_in_copy(kDocuments);
}

/// What the record has lost lies in the copy, and would be taken for deleted later.
TEST_F(StoreCopy, ARecordThatLostWritesDoesNotGoOnWithoutIt) {
  begin_with_disk();
  write_documents(/*crash=*/false, 0, 4);
  write_documents(/*crash=*/true, 4, kDocuments - 4);
  fs::resize_file(files(".log").back(), 0);
  take_copy_away();
  // The ledger knows of it at the first start alone.
  for (int start = 0; start < 3; ++start) {
    const auto refused = open();
    EXPECT_EQ(refused.code(), Code::kNotFound);
    EXPECT_EQ(refused.status().field(), "disk.copy_path");
    EXPECT_NE(refused.status().message().find("lost writes"), std::string::npos)
        << refused.status().to_string();
  }
  put_copy_back();
  expect_all(kDocuments, /*brought_back=*/true);
  take_copy_away();
  expect_without_copy(kDocuments);
}

TEST_F(StoreCopy, WhatOnlyItHasIsKeptWhereTheRecordWasToldToGoOn) {
  for (const bool at_once : {false, true}) {
    SCOPED_TRACE(at_once);
    begin_with_disk();
    write_documents(/*crash=*/false, 0, 4);
    write_documents(/*crash=*/true, 4, 4);
    fs::resize_file(files(".log").back(), 0);
    take_copy_away();
    if (!at_once) {
      EXPECT_EQ(open().status().field(), "disk.copy_path");
    }
    const std::string copy = std::exchange(options.copy_path, "");
    write_documents(/*crash=*/true, 8, 1);
    options.copy_path = copy;
    put_copy_back();
    expect_all(5, /*brought_back=*/false, /*lost=*/true);
    expect_in_copy(5);
    EXPECT_TRUE(fs::exists(options.copy_path + "/earlier/db"));
    // What is still to be told does not concern the new copy.
    write_documents(/*crash=*/true, 9, 1);
    expect_all(6, /*brought_back=*/false, /*lost=*/true);
    expect_in_copy(6);
    EXPECT_FALSE(fs::exists(options.copy_path + "/earlier-1"));
    take_copy_away();
    expect_without_copy(6);
  }
}

TEST_F(StoreCopy, WhatOnlyItHasIsKeptWhereTheRecordWentOnWithoutIt) {
  begin_with_disk();
  write_documents(/*crash=*/false, 0, 4);
  write_documents(/*crash=*/true, 4, 4);
  fs::resize_file(files(".log").back(), 0);
  empty_ledgers(options.path);  // so nobody knows of the loss
  take_copy_away();
  expect_without_copy(4);
  write_documents(/*crash=*/true, 8, 1);
  put_copy_back();
  expect_all(5, /*brought_back=*/false);
  expect_in_copy(5);
  EXPECT_TRUE(fs::exists(options.copy_path + "/earlier/db"));
}

TEST_F(StoreCopy, ARecordThatNeverHadItIsNotOpenedWithoutIt) {
  const std::string copy = options.copy_path;
  options.copy_path.clear();
  write_documents(/*crash=*/false);
  options.copy_path = folder.path("missing") + "/copy";
  for (int start = 0; start < 2; ++start) {
    EXPECT_EQ(open().code(), Code::kNotFound);
    EXPECT_EQ(open().status().field(), "disk.copy_path");
  }
  options.copy_path = copy;
  expect_all(kDocuments, /*brought_back=*/false);
}

/// The copy's disk can only be read. A child has one in a mount namespace of its own.
TEST_F(StoreCopy, ACopyOnADiskThatIsReadOnlyIsSaidAndTheStoreGoesOn) {
  write_documents(/*crash=*/false);
  const char* copy = options.copy_path.c_str();
  const auto mounts = [&] {
    return ::mount(copy, copy, nullptr, MS_BIND, nullptr) == 0 &&
           ::mount("none", copy, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0;
  };
  const int status = with_own_mounts(mounts, [](Store& store) {
    if (!store.stats().record_copy.behind) return 3;
    return test::put_document(store, id_of(kDocuments), {1}).ok() ? 0 : 4;
  });
  if (status == kCannot) GTEST_SKIP() << "this system mounts nothing for a test";
  ASSERT_EQ(status, 0);
  expect_all(kDocuments + 1, /*brought_back=*/false);
}

/// The copy's disk is full. A child has a small one in a mount namespace of its own.
TEST_F(StoreCopy, ACopyThatCannotBeWrittenIsSaidAndTheStoreGoesOn) {
  fs::create_directory(options.copy_path);
  const auto mounts = [&] {
    return ::mount("tmpfs", options.copy_path.c_str(), "tmpfs", 0, "size=6m") == 0;
  };
  const int status = with_own_mounts(mounts, [](Store& store) {
    std::uint64_t n = 0;
    while (!store.stats().record_copy.behind && n < 20000) {
      if (!test::put_document(store, id_of(n), {n}).ok()) return 3;
      ++n;
    }
    if (n == 20000) return 4;
    for (std::uint64_t i = 0; i < kDocuments; ++i)
      if (!test::put_document(store, id_of(i), {i}).ok()) return 5;
    return 0;
  });
  if (status == kCannot) GTEST_SKIP() << "this system mounts nothing for a test";
  ASSERT_EQ(status, 0);
  auto store = open();
  ASSERT_OK(store);
  EXPECT_GE(documents(**store).size(), kDocuments);
  EXPECT_TRUE((*store)->stats().record_copy.kept);
  EXPECT_FALSE((*store)->stats().record_copy.behind);
}

/// Whatever is damaged of the record alone, every document is there.
TEST_F(StoreCopy, RandomDamageOfTheRecordLosesNothing) {
  const int rounds = test::env_int("QUIRE_DAMAGE_ROUNDS", 40);
  const auto first_seed = static_cast<std::uint64_t>(test::env_int("QUIRE_DAMAGE_SEED", 1));
  options.on_damage = OnDamage::kSalvage;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(round);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 rng(seed);
    begin_anew();
    write_documents(/*crash=*/rng() % 2 == 0, 0, kDocuments);
    if (rng() % 2 == 0) write_documents(/*crash=*/rng() % 2 == 0, 0, kDocuments);
    std::vector<fs::path> all;
    for (const auto& e : fs::recursive_directory_iterator(options.path))
      if (e.is_regular_file() && e.path().filename() != "STORE") all.push_back(e.path());
    std::sort(all.begin(), all.end());
    SCOPED_TRACE(damage_some(all, 1 + rng() % 3, rng));
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
    store->reset();
    expect_in_copy(kDocuments);
  }
}

}  // namespace
}  // namespace quire
