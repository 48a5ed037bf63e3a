// Damage of a store's folder: what is no record never keeps it from opening, a lost log is said,
// and a damaged record is salvaged.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <set>

#include "base/index.h"
#include "cachestore/disk/backup.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_note.h"
#include "cachestore/disk/repair.h"
#include "cachestore/disk/write_ledger.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/format/record.h"
#include "cachestore/store_admin.h"
#include "tests/support/harness/damaged_store.h"
#include "tests/support/harness/failing_folders.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// Not a test: the process that write_documents() starts.
TEST(StoreDamageChild, DISABLED_WritesDocuments) {
  const char* path = std::getenv("QUIRE_DAMAGE_CHILD");
  if (!path) GTEST_SKIP() << "runs within other tests";
  StoreOptions options;
  options.path = path;
  options.dram_bytes = 0;
  if (const char* copy = std::getenv("QUIRE_DAMAGE_COPY")) options.copy_path = copy;
  const std::string more(to_size(test::env_int("QUIRE_DAMAGE_MORE", 0)) << 10, 'x');
  if (!more.empty()) options.max_bytes = 256 << 20;
  auto store = open_store(options);
  if (!store.ok()) ::_exit(2);
  const auto first = static_cast<std::uint64_t>(test::env_int("QUIRE_DAMAGE_FIRST", 0));
  const auto count = static_cast<std::uint64_t>(test::env_int("QUIRE_DAMAGE_COUNT", 0));
  // Documents of all layouts of the record of their tokens.
  const auto vary = [](std::uint64_t i) {
    return [i](DocumentManifest& m) {
      if (i % 3 == 1) m.marks = {{0, 1, "A heading"}};
      if (i % 3 == 2) m.related = {{"", "", 0, {1, 2}}, {"other", "sha256:1", 3, {7}}};
    };
  };
  for (std::uint64_t i = first; i < first + count; ++i) {
    if (!test::put_document(**store, id_of(i), {i}, {}, false, vary(i)).ok()) ::_exit(3);
    if (!more.empty() && !(*store)->put_meta("more" + std::to_string(i), more).ok()) ::_exit(4);
  }
  if (test::env_int("QUIRE_DAMAGE_CRASH", 0) == 1) ::_exit(0);
  store->reset();
  ::_exit(0);
}

TEST_F(StoreDamage, ALostLogIsSaidByNumberAndTime) {
  struct Case {
    const char* name;
    std::function<void(const fs::path&)> damage;
  };
  const Case cases[] = {
      {"emptied", [](const fs::path& log) { fs::resize_file(log, 0); }},
      {"deleted", [](const fs::path& log) { fs::remove(log); }},
      {"cut", [](const fs::path& log) { fs::resize_file(log, fs::file_size(log) / 2); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    fs::remove_all(options.path);
    write_documents(/*crash=*/true);
    const auto logs = files(".log");
    ASSERT_EQ(logs.size(), 1u);
    c.damage(logs.front());
    auto store = open();
    ASSERT_OK(store);
    const auto there = documents(**store);
    const LostWrites lost = (*store)->stats().lost;
    EXPECT_LT(there.size(), kDocuments);
    EXPECT_EQ(lost.count, kDocuments - there.size()) << "each document was one write";
    EXPECT_GT(lost.first_ms, 0);
    EXPECT_LE(lost.first_ms, lost.last_ms);
    store->reset();
    store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->stats().lost.count, lost.count) << "no start was ready to say it";
    EXPECT_EQ((*store)->stats().lost.first_ms, lost.first_ms);
    EXPECT_EQ((*store)->stats().lost.last_ms, lost.last_ms);
    (*store)->lost_writes_told();
    EXPECT_EQ((*store)->lost_writes().count, lost.count) << "as long as it runs";
    store->reset();
    store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->stats().lost.count, 0u) << "it was said";
  }
}

TEST_F(StoreDamage, ALostLogIsSaidWhereOneOfItsLedgersIsDamaged) {
  const std::pair<const char*, std::function<void(const fs::path&)>> damages[] = {
      {"removed", [](const fs::path& file) { fs::remove(file); }},
      {"emptied", [](const fs::path& file) { fs::resize_file(file, 0); }},
      {"garbage", [](const fs::path& file) { write(file, std::string(40'000, 'x')); }},
      {"a folder",
       [](const fs::path& file) {
         fs::remove(file);
         fs::create_directory(file);
       }},
  };
  for (const char* ledger : {"/LEDGER", "/db/LEDGER"}) {
    for (const auto& [name, damage] : damages) {
      SCOPED_TRACE(std::string(ledger) + " " + name);
      fs::remove_all(options.path);
      write_documents(/*crash=*/true, 0, 4);
      write_documents(/*crash=*/true, 4, 4);
      fs::resize_file(files(".log").back(), 0);
      damage(options.path + ledger);
      auto store = open();
      ASSERT_OK(store);
      EXPECT_EQ(documents(**store).size(), 4u);
      EXPECT_EQ((*store)->lost_writes().count, 4u);
      EXPECT_GT((*store)->lost_writes().first_ms, 0);
    }
  }
}

TEST_F(StoreDamage, ARepairSaysWhatEarlierStartsFoundLost) {
  write_documents(/*crash=*/true);
  fs::resize_file(files(".log").back(), 0);
  ASSERT_OK(open());  // it finds the loss, and no service was ready to say so
  for (const bool dry_run : {true, false}) {
    const auto report = repair_store({options.path, dry_run});
    ASSERT_OK(report);
    EXPECT_EQ(report->untold.count, kDocuments);
    EXPECT_GT(report->untold.first_ms, 0);
  }
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->lost_writes().count, kDocuments) << "it is still to be told";
  (*store)->lost_writes_told();
  store->reset();
  const auto report = repair_store({options.path, /*dry_run=*/true});
  ASSERT_OK(report);
  EXPECT_EQ(report->untold.count, 0u);
}

TEST_F(StoreDamage, ARepairReadsBothLedgers) {
  for (const char* ledger : {"/LEDGER", "/db/LEDGER"}) {
    SCOPED_TRACE(ledger);
    fs::remove_all(options.path);
    write_documents(/*crash=*/true);
    fs::resize_file(files(".log").back(), 0);
    fs::remove(options.path + ledger);
    const auto report = repair_store({options.path, /*dry_run=*/true});
    ASSERT_OK(report);
    EXPECT_TRUE(report->may_lack_documents);
    EXPECT_TRUE(std::ranges::any_of(report->damage, [](const std::string& line) {
      return line.starts_with("12 acknowledged writes are not in the log");
    }));
  }
}

TEST_F(StoreDamage, LossesOfSeveralStartsAddUp) {
  for (const std::uint64_t first : {0u, 4u}) {
    write_documents(/*crash=*/true, first, 4);
    fs::resize_file(files(".log").back(), 0);
  }
  options.read_only = true;
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->lost_writes().count, 4u) << "the process that wrote the others found them";
    (*store)->lost_writes_told();
  }
  options.read_only = false;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->lost_writes().count, 8u);
  EXPECT_TRUE(documents(**store).empty());
}

/// The process is killed between keeping what is lost and forgetting it in the ledger.
TEST_F(StoreDamage, AKillWhileALossIsNotedNeitherHidesNorDoublesIt) {
  write_documents(/*crash=*/true);
  const std::string ledger = read(options.path + "/LEDGER");
  fs::resize_file(files(".log").back(), 0);
  {
    const auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->lost_writes().count, kDocuments);
  }
  write(options.path + "/LEDGER", ledger);
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->lost_writes().count, kDocuments);
}

TEST_F(StoreDamage, ADamagedNoteOfLostWritesIsSaidAndKeepsNoStart) {
  write_documents(/*crash=*/true);
  write(options.path + "/LOST_WRITES", "garbage");
  for (int start = 0; start < 2; ++start) {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
    const LostWrites lost = (*store)->lost_writes();
    EXPECT_EQ(lost.count, 1u);
    EXPECT_TRUE(lost.at_least && lost.note_damaged);
    if (start == 1) (*store)->lost_writes_told();
  }
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->lost_writes().count, 0u);
}

TEST_F(StoreDamage, AnOlderLogInThePlaceOfTheNewOneIsSaid) {
  write_documents(/*crash=*/true, 0, 4);
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 1u);
  const std::string older = read(logs.front());
  write_documents(/*crash=*/true, 4, 4);
  const auto now = files(".log");
  ASSERT_FALSE(now.empty());
  write(now.back(), older);
  auto store = open();
  if (!store.ok()) {  // the manifest may have the size of the log
    EXPECT_EQ(store.code(), Code::kCorruption);
    return;
  }
  EXPECT_EQ((*store)->stats().lost.count, 8 - documents(**store).size());
  EXPECT_GT((*store)->stats().lost.count, 0u);
}

TEST_F(StoreDamage, ATornEndOfTheLogIsLeftOut) {
  write_documents(/*crash=*/true);
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 1u);
  const std::string log = read(logs.front());
  // A record of 700 bytes that was being written: the disk has its first sector, not the second.
  const std::string head = std::string("abcd") + "\xBC\x02" + '\x01';
  write(logs.front(), log + head + std::string(505, 'x') + std::string(195, '\0'));
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_EQ((*store)->stats().lost.count, 0u);
  store->reset();
  store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
}

/// Each start behind a torn end begins its log with the same empty batch. A deletion of the older
/// log may not have reached the disk.
TEST_F(StoreDamage, TwoTornEndsInARowAreNotTakenForALogInTheWrongPlace) {
  write_documents(/*crash=*/true);
  const std::string record = options.path + "/db", kept = folder.path("kept");
  const std::string torn = std::string("abcd\xBC\x02\x01", 7) + std::string(505, 'x') +
                           std::string(195, '\0');
  fs::path older;
  std::string bytes;
  for (int start = 0; start < 2; ++start) {
    ASSERT_FALSE(files(".log").empty());
    older = files(".log").back();
    bytes = read(older) + torn;
    write(older, bytes);
    {
      auto store = open();
      ASSERT_OK(store);
      fs::copy(record, kept);  // what a loss of power leaves
    }
    fs::remove_all(record);
    fs::rename(kept, record);
    fs::remove(options.path + "/SEAL");
  }
  const auto newer = files(".log").back();
  ASSERT_NE(newer, older);
  ASSERT_EQ(log_records(read(newer)).records.size(), 1u);
  ASSERT_EQ(log_records(read(newer)).records, log_records(bytes).records);
  write(older, bytes);
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_EQ((*store)->stats().lost.count, 0u);
}

TEST_F(StoreDamage, ATornWriteThatMayHaveBeenAcknowledgedIsSaidOrRefused) {
  write_documents(/*crash=*/true);
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 1u);
  std::string log = read(logs.front());
  std::fill_n(log.end() - 200, 50, '\0');  // in the record of the last document
  write(logs.front(), log);
  auto store = open();
  EXPECT_EQ(store.code(), Code::kCorruption) << "the ledger knows that it was acknowledged";
  // A power failure takes the ledger's last entries, too.
  empty_ledgers(options.path);
  store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments - 1);
  EXPECT_EQ((*store)->stats().lost.count, 1u);
  EXPECT_EQ((*store)->stats().lost.last_ms, 0) << "it may not have been acknowledged";
}

TEST_F(StoreDamage, ALogThatLacksAWriteBetweenOthersIsDamaged) {
  // With more writes behind it than the record has slots for their numbers.
  for (const std::uint64_t count : {kDocuments, std::uint64_t{400}}) {
    SCOPED_TRACE(count);
    fs::remove_all(options.path);
    options.on_damage = OnDamage::kRefuse;
    write_documents(/*crash=*/true, 0, count);
    const auto logs = files(".log");
    ASSERT_EQ(logs.size(), 1u);
    // Of a document there are the place of its KV and the document.
    ASSERT_GT(lose_a_record(logs.front(), 9), 10u);
    const auto refused = open();
    ASSERT_EQ(refused.code(), Code::kCorruption);
    EXPECT_NE(refused.status().message().find("lacks changes between others"), std::string::npos);
    options.on_damage = OnDamage::kSalvage;
    auto store = open();
    ASSERT_OK(store);
    EXPECT_GE(documents(**store).size(), kDocuments - 1) << "what is behind the gap is there";
    EXPECT_NE((*store)->stats().salvaged.find("there may be more"), std::string::npos);
    store->reset();
    store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->stats().salvaged, "");
  }
}

TEST_F(StoreDamage, ALogThatLacksItsFirstWritesIsDamaged) {
  for (const bool tables : {false, true}) {
    SCOPED_TRACE(tables);
    fs::remove_all(options.path);
    options.on_damage = OnDamage::kRefuse;
    const std::uint64_t before = tables ? 4 : 0;
    if (tables) write_documents(/*crash=*/true, 0, before);
    // More than the record has slots for their numbers.
    write_documents(/*crash=*/true, before, 400);
    const fs::path log = files(".log").back();
    lose_first_records(log, 5);
    const auto refused = open();
    ASSERT_EQ(refused.code(), Code::kCorruption);
    const std::string& why = refused.status().message();
    EXPECT_NE(why.find("lacks its first changes and begins with change "), std::string::npos)
        << why;
    options.on_damage = OnDamage::kSalvage;
    auto store = open();
    ASSERT_OK(store);
    const auto there = documents(**store);
    EXPECT_LT(there.size(), 2 * kDocuments);
    EXPECT_GE(there.size(), 2 * kDocuments - 3) << "what is behind the gap is there";
    EXPECT_TRUE(!tables || there.contains(id_of(3)));
    EXPECT_NE((*store)->stats().salvaged.find("there may be more"), std::string::npos);
    store->reset();
    store = open();
    ASSERT_OK(store);
    EXPECT_EQ((*store)->stats().salvaged, "");
  }
}

TEST_F(StoreDamage, FirstWritesOfALogThatNothingAcknowledgedFollowsAreATornEnd) {
  write_documents(/*crash=*/true, 0, 4);
  write_documents(/*crash=*/true, 4, 8);
  const fs::path log = files(".log").back();
  lose_first_records(log, 5);
  const std::string before = read(log);
  ASSERT_EQ(open().code(), Code::kCorruption) << "the ledger knows of them";
  empty_ledgers(options.path);
  for (const bool read_only : {true, false}) {
    SCOPED_TRACE(read_only);
    options.read_only = read_only;
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(first_documents(**store, 12), 4u) << "what tables have";
    EXPECT_TRUE(read_only || (*store)->stats().lost.count > 0);
  }
  EXPECT_EQ(read(options.path + "/" + log.filename().string() + ".torn"), before);
}

/// Tables of one family may have later changes than the first log that another one needs.
TEST_F(StoreDamage, NoLogThatTablesLeaveIsTakenForOneThatLacksItsFirstWrites) {
  more_kib = 100;
  std::uint64_t written = 0;
  bool has_tables = false;
  // The last children write more than the two tables in memory hold, so they wait for one on disk.
  for (const std::uint64_t count : {6, 14, 25, 40}) {
    SCOPED_TRACE(count);
    write_documents(/*crash=*/true, written, count);
    has_tables = has_tables || tables_have_only_more_of(written);
    written += count;
    options.read_only = true;
    {
      auto store = open();
      ASSERT_OK(store);
      EXPECT_EQ(first_documents(**store, written), written);
    }
    options.read_only = false;
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(first_documents(**store, written), written);
    EXPECT_EQ((*store)->stats().lost.count, 0u);
  }
  EXPECT_TRUE(has_tables) << "no family was written to a table before another";
}

TEST_F(StoreDamage, ARepairTellsHowManyWritesAGapHad) {
  write_documents(/*crash=*/true, 0, 400);
  const auto log = files(".log").front();
  const LogRecords found = log_records(read(log));
  // The first one that has a number of the ledger, behind some that have.
  std::size_t which = 20;
  while (WriteLedger::numbers_in(found.records.at(which)).empty()) ++which;
  lose_a_record(log, which);
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_TRUE(report->may_lack_documents);
  EXPECT_TRUE(std::ranges::any_of(report->damage, [](const std::string& line) {
    return line.starts_with("1 acknowledged writes are not in the log");
  }));
}

/// Its deletion did not reach the disk. Between it and the log that is needed changes are missing.
TEST_F(StoreDamage, ALogWhoseChangesAreInTablesIsNoPartOfARepair) {
  write_documents(/*crash=*/true, 0, 4);
  const fs::path older = files(".log").back();
  const std::string bytes = read(older);
  write_documents(/*crash=*/true, 4, 4);
  const std::string record = options.path + "/db", kept = folder.path("kept");
  {
    auto store = open();
    ASSERT_OK(store);
    // A head alone, which may go with another text where changes before it are missing.
    ASSERT_OK((*store)->update_document("default", id_of(5), [](DocumentManifest& m) {
      m.title = "another";
      return Status();
    }));
    fs::copy(record, kept);  // what a crash leaves
  }
  fs::remove_all(record);
  fs::rename(kept, record);
  fs::remove(options.path + "/SEAL");
  ASSERT_FALSE(fs::exists(older));
  write(older, bytes);
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_TRUE(report->damage.empty()) << report->damage.front();
  EXPECT_FALSE(report->may_lack_documents);
  EXPECT_EQ(report->documents, 8u);
  EXPECT_OK(open());
}

TEST_F(StoreDamage, AGapThatNothingAcknowledgedFollowsIsATornEnd) {
  for (const bool whole : {true, false}) {
    SCOPED_TRACE(whole);
    fs::remove_all(options.path);
    write_documents(/*crash=*/true);
    const auto log = files(".log").front();
    ASSERT_GT(lose_a_record(log, 13, whole), 5u);
    const std::string before = read(log);
    ASSERT_EQ(open().code(), Code::kCorruption) << "the ledger knows of them";
    // A power failure takes the ledger's last entries, too.
    empty_ledgers(options.path);
    auto store = open();
    ASSERT_OK(store);
    const auto there = documents(**store);
    EXPECT_LT(there.size(), kDocuments);
    EXPECT_TRUE(there.contains(id_of(0)));
    EXPECT_GT((*store)->stats().lost.count, 0u);
    EXPECT_EQ((*store)->stats().lost.last_ms, 0) << "they may not have been acknowledged";
    EXPECT_EQ(read(options.path + "/" + log.filename().string() + ".torn"), before);
  }
}

TEST_F(StoreDamage, ACutThatAStartEndedBehindIsSaidByTheNextOne) {
  write_documents(/*crash=*/true);
  const auto log = files(".log").front();
  const std::string bytes = read(log);
  write(options.path + "/" + log.filename().string() + ".torn", bytes);
  fs::resize_file(log, log_records(bytes).ends.at(13));
  empty_ledgers(options.path);  // it would tell of them
  for (const bool read_only : {true, false}) {
    SCOPED_TRACE(read_only);
    options.read_only = read_only;
    auto store = open();
    ASSERT_OK(store);
    const auto there = documents(**store);
    EXPECT_LT(there.size(), kDocuments);
    if (read_only) continue;
    EXPECT_EQ((*store)->stats().lost.count, kDocuments - there.size());
    EXPECT_EQ((*store)->stats().lost.last_ms, 0) << "they may not have been acknowledged";
    (*store)->lost_writes_told();
  }
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ((*store)->stats().lost.count, 0u) << "it was said";
}

TEST_F(StoreDamage, AGapBeforeChangesThatATableHasIsNoTornEnd) {
  write_documents(/*crash=*/true);
  begin_another_log();
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 2u);
  lose_a_record(logs.front(), 1);  // the change of the family that was written to a table
  fs::create_hard_link(logs.front(), folder.path("link"));
  for (const bool read_only : {true, false}) {
    options.read_only = read_only;
    const auto refused = open();
    ASSERT_EQ(refused.code(), Code::kCorruption);
    EXPECT_NE(refused.status().message().find("the manifest knows what is behind"),
              std::string::npos)
        << refused.status().message();
  }
  EXPECT_EQ(files(".log"), logs) << "nothing is cut";
  EXPECT_TRUE(fs::equivalent(logs.front(), folder.path("link"))) << "nor was it for a moment";
}

/// RocksDB itself would go on behind it, and mix what is there with what came before the gap.
TEST_F(StoreDamage, WhoOnlyReadsStopsAtAGapThatNothingAcknowledgedFollows) {
  constexpr std::uint64_t kMany = 400;  // over many blocks of the log
  write_documents(/*crash=*/true, 0, kMany);
  lose_a_record(files(".log").front(), 200);
  empty_ledgers(options.path);
  options.read_only = true;
  std::uint64_t seen = 0;
  {
    auto store = open();
    ASSERT_OK(store);
    seen = first_documents(**store, kMany);
    EXPECT_GT(seen, 0u);
    EXPECT_LT(seen, kMany);
  }
  options.read_only = false;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(first_documents(**store, kMany), seen);
}

TEST_F(StoreDamage, AManifestThatLacksAnEditBetweenOthersIsDamaged) {
  write_documents(/*crash=*/false, 0, 4);
  write_documents(/*crash=*/false, 4, 4);
  fs::remove(options.path + "/SEAL");
  std::string name = read(options.path + "/db/CURRENT");
  name.pop_back();
  const fs::path manifest = options.path + "/db/" + name;
  std::string bytes = read(manifest);
  const LogRecords found = log_records(bytes);
  ASSERT_GT(found.ends.size(), 3u);
  const std::size_t n = found.ends.size();
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(found.ends[n - 3]),
            bytes.begin() + static_cast<std::ptrdiff_t>(found.ends[n - 2]), '\0');
  write(manifest, bytes);
  ASSERT_EQ(open().code(), Code::kCorruption);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 8u) << "the tables are there";
}

TEST_F(StoreDamage, ATornEndOfTheManifestIsCut) {
  write_documents(/*crash=*/false, 0, 4);
  write_documents(/*crash=*/true, 4, 8);
  const auto manifest = [this] {
    std::string name = read(options.path + "/db/CURRENT");
    name.pop_back();
    return options.path + "/db/" + name;
  };
  // An edit of 700 bytes that was being written: the disk has its first sector, not the second.
  const std::string head = std::string("abcd") + "\xBC\x02" + '\x01';
  write(manifest(), read(manifest()) + head + std::string(505, 'x') + std::string(195, '\0'));
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_EQ((*store)->stats().lost.count, 0u);
  bool kept = false;
  for (const auto& e : fs::directory_iterator(options.path))
    kept = kept || e.path().extension() == ".torn";
  EXPECT_TRUE(kept);
  store->reset();
  store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
}

TEST_F(StoreDamage, AManifestThatLostAnEditIsNeverSilent) {
  // Whatever the last edit was, what it named is there, or refused.
  for (const int cut : {1, 20, 60}) {
    SCOPED_TRACE(cut);
    fs::remove_all(options.path);
    write_documents(/*crash=*/false, 0, 4);
    write_documents(/*crash=*/false, 4, 4);
    fs::remove(options.path + "/SEAL");
    for (const auto& e : fs::directory_iterator(options.path + "/db")) {
      if (e.path().filename().string().starts_with("MANIFEST-"))
        fs::resize_file(e.path(), e.file_size() - static_cast<std::uintmax_t>(cut));
    }
    auto store = open();
    if (!store.ok()) {
      EXPECT_EQ(store.code(), Code::kCorruption);
      continue;
    }
    EXPECT_EQ(documents(**store).size() + (*store)->stats().lost.count, 8u);
  }
}

/// Each start notes how long the manifest is. Without its last edits the record would be that of
/// the start before, whose log is gone, and its tables would be deleted.
TEST_F(StoreDamage, AManifestThatLostItsLastEditsIsNoticedWhateverWasWrittenLater) {
  constexpr std::uint64_t kBefore = 4, kLater = 300;  // more than the record has slots for numbers
  write_documents(/*crash=*/true, 0, kBefore);
  write_documents(/*crash=*/true, kBefore, kLater);
  fs::copy(options.path, folder.path("kept"), fs::copy_options::recursive);
  for (const std::size_t lost : {1u, 2u, 4u, 6u, 9u}) {
    for (const bool torn : {false, true}) {
      SCOPED_TRACE(std::to_string(lost) + (torn ? " edits, the first of them torn" : " edits"));
      fs::remove_all(options.path);
      fs::copy(folder.path("kept"), options.path, fs::copy_options::recursive);
      std::string name = read(options.path + "/db/CURRENT");
      name.pop_back();
      const fs::path manifest = options.path + "/db/" + name;
      const auto ends = log_records(read(manifest)).ends;
      ASSERT_GT(ends.size(), lost);
      fs::resize_file(manifest, ends[ends.size() - 1 - lost] + (torn ? 9 : 0));
      options.on_damage = OnDamage::kRefuse;
      const auto refused = open();
      ASSERT_EQ(refused.code(), Code::kCorruption);
      EXPECT_NE(refused.status().message().find("has lost its last edits"), std::string::npos)
          << refused.status().message();
      options.on_damage = OnDamage::kSalvage;
      auto store = open();
      ASSERT_OK(store);
      EXPECT_EQ(first_documents(**store, kBefore + kLater), kBefore + kLater)
          << "the tables are there";
      store->reset();
      EXPECT_OK(open());
    }
  }
}

TEST_F(StoreDamage, ANoteOfAnotherRecordsManifestCountsForNothing) {
  write_documents(/*crash=*/true, 0, 8);
  // A repair by a program that does not know the note leaves it beside the new record.
  ManifestNote{"MANIFEST-999999", 1'000'000, "another"}.write(options.path + "/EDITS");
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 8u);
  store->reset();
  ManifestNote{"MANIFEST-999999", 1'000'000, record_identity(options.path + "/db")}.write(
      options.path + "/EDITS");
  EXPECT_EQ(open().code(), Code::kCorruption);
}

TEST_F(StoreDamage, AnOlderRecordInThePlaceOfTheNewOneSaysHowToRepairIt) {
  for (const bool closed : {false, true}) {
    SCOPED_TRACE(closed ? "beside SEAL" : "beside EDITS");
    fs::remove_all(options.path);
    fs::remove_all(folder.path("older"));
    write_documents(/*crash=*/true, 0, 4);
    fs::copy(options.path + "/db", folder.path("older"));
    write_documents(/*crash=*/!closed, 4, 300);
    fs::remove_all(options.path + "/db");
    fs::copy(folder.path("older"), options.path + "/db");
    const auto refused = open();
    ASSERT_EQ(refused.code(), Code::kCorruption);
    const std::string& why = refused.status().message();
    EXPECT_NE(why.find(closed ? "of another time than SEAL beside it"
                              : "this record is older than EDITS beside it"),
              std::string::npos)
        << why;
    EXPECT_TRUE(why.ends_with(": quire store repair --path " + options.path)) << why;
    EXPECT_NE(why.find("only tells of it without --apply"), std::string::npos) << why;
    ASSERT_OK(repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true}));
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(first_documents(**store, 304), 4u) << "what the older record had";
  }
}

TEST_F(StoreDamage, TheCommandOfARepairIsQuotedForAShell) {
  options.path = folder.path("Sam's store");
  write_documents(/*crash=*/true);
  ManifestNote{"MANIFEST-999999", 1'000'000, record_identity(options.path + "/db")}.write(
      options.path + "/EDITS");
  const auto refused = open();
  ASSERT_EQ(refused.code(), Code::kCorruption);
  const std::string& why = refused.status().message();
  const std::string word = "'" + folder.root() + R"(/Sam'\''s store')";
  EXPECT_TRUE(why.ends_with(": quire store repair --path " + word)) << why;
  options.copy_path = folder.path("a copy");
  const auto with_copy = open();
  ASSERT_EQ(with_copy.code(), Code::kCorruption);
  const std::string& both = with_copy.status().message();
  EXPECT_TRUE(both.ends_with(" --path " + word + " --copy '" + options.copy_path + "'")) << both;
}

TEST_F(StoreDamage, AManifestThatIsNoFileIsDamage) {
  write_documents(/*crash=*/false, 0, 8);
  fs::remove(options.path + "/SEAL");
  const std::string db = options.path + "/db/", current = read(db + "CURRENT");
  const std::string manifest = db + current.substr(0, current.find('\n'));
  fs::copy_file(manifest, db + "MANIFEST-000999");
  fs::resize_file(db + "CURRENT", 0);  // which of the two it was nobody knows
  EXPECT_EQ(open().code(), Code::kCorruption);
  fs::remove(db + "MANIFEST-000999");
  write(db + "CURRENT", current);
  fs::remove(manifest);
  fs::create_directory(manifest);
  EXPECT_EQ(open().code(), Code::kCorruption);
}

TEST_F(StoreDamage, ACrashLosesNothing) {
  for (int round = 0; round < 3; ++round)
    write_documents(/*crash=*/true, static_cast<std::uint64_t>(round) * 4, 4);
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 12u);
  EXPECT_EQ((*store)->stats().lost.count, 0u);
}

TEST_F(StoreDamage, ADiskThatFailsWithinAFolderIsAnErrorAndNoDamage) {
  write_documents(/*crash=*/true);
  fs::copy(options.path, folder.path("kept"), fs::copy_options::recursive);
  bool failed = true;
  for (int n = 0; failed; n += 1 + n / 8) {
    SCOPED_TRACE(n);
    fs::remove_all(options.path);
    fs::copy(folder.path("kept"), options.path, fs::copy_options::recursive);
    {
      const test::FailingFolder fails(n);
      const auto store = open();
      failed = fails.has_failed();
      EXPECT_TRUE(store.ok() || store.code() == Code::kIo) << store.status().to_string();
    }
    {
      const test::FailingFolder fails(n);
      const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
      failed = failed || fails.has_failed();
      if (report.ok()) {
        EXPECT_EQ(report->documents, kDocuments);
      } else {
        EXPECT_EQ(report.code(), Code::kIo) << report.status().to_string();
      }
    }
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), kDocuments);
    EXPECT_EQ((*store)->stats().lost.count, 0u);
  }
}

TEST_F(StoreDamage, WhatIsNoRecordNeverKeepsAStoreFromOpening) {
  const auto in_its_place_a_folder = [](const std::string& path) {
    fs::remove_all(path);
    fs::create_directory(path);
    std::ofstream(path + "/x") << "y";
  };
  const std::string root = options.path, db = root + "/db";
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"LOCK is a folder", [&] { in_its_place_a_folder(root + "/LOCK"); }},
      {"LOCK of RocksDB is a folder", [&] { in_its_place_a_folder(db + "/LOCK"); }},
      {"LOCK is gone", [&] { fs::remove(root + "/LOCK"); }},
      {"IDENTITY is a folder", [&] { in_its_place_a_folder(db + "/IDENTITY"); }},
      {"IDENTITY is empty", [&] { fs::resize_file(db + "/IDENTITY", 0); }},
      {"IDENTITY is gone", [&] { fs::remove(db + "/IDENTITY"); }},
      {"OPTIONS are folders",
       [&] {
         for (const auto& e : fs::directory_iterator(db))
           if (e.path().filename().string().starts_with("OPTIONS-"))
             in_its_place_a_folder(e.path().string());
       }},
      {"CURRENT without its line end",
       [&] { fs::resize_file(db + "/CURRENT", fs::file_size(db + "/CURRENT") - 1); }},
      {"STORE is cut", [&] { fs::resize_file(root + "/STORE", 5); }},
      {"STORE has one bit flipped", [&] { write(root + "/STORE", "quire st\xefre layout 2\n"); }},
      {"STORE is a folder", [&] { in_its_place_a_folder(root + "/STORE"); }},
      {"STORE is gone", [&] { fs::remove(root + "/STORE"); }},
      {"SEAL is a folder", [&] { in_its_place_a_folder(root + "/SEAL"); }},
      {"SEAL is garbage", [&] { write(root + "/SEAL", "garbage"); }},
      {"LEDGER is a folder", [&] { in_its_place_a_folder(root + "/LEDGER"); }},
      {"LEDGER is garbage", [&] { write(root + "/LEDGER", std::string(40'000, 'x')); }},
      {"the twin of LEDGER is a folder", [&] { in_its_place_a_folder(db + "/LEDGER"); }},
      {"the twin of LEDGER is garbage", [&] { write(db + "/LEDGER", std::string(40'000, 'x')); }},
      {"LOST_WRITES is a folder", [&] { in_its_place_a_folder(root + "/LOST_WRITES"); }},
      {"EDITS is a folder", [&] { in_its_place_a_folder(root + "/EDITS"); }},
      {"EDITS is garbage", [&] { write(root + "/EDITS", std::string(40'000, 'x')); }},
      {"EDITS is gone", [&] { fs::remove(root + "/EDITS"); }},
      {"extents are gone", [&] { fs::remove_all(root + "/extents"); }},
      {"extents are a file",
       [&] {
         fs::remove_all(root + "/extents");
         write(root + "/extents", "x");
       }},
  };
  for (const bool crash : {false, true}) {
    for (const auto& [name, damage] : cases) {
      SCOPED_TRACE(name + (crash ? ", after a crash" : ", after a close"));
      fs::remove_all(root);
      write_documents(crash);
      damage();
      auto store = open();
      ASSERT_OK(store);
      EXPECT_EQ(documents(**store).size(), kDocuments);
      EXPECT_EQ((*store)->stats().lost.count, 0u);
      ASSERT_OK(test::put_document(**store, id_of(kDocuments), {kDocuments}));
    }
  }
}

TEST_F(StoreDamage, NoBitOfTheMarkerKeepsAStoreFromOpening) {
  write_documents(/*crash=*/true);
  const std::string marker = options.path + "/STORE", whole = read(marker);
  // Markers of older programs have no checksum.
  const std::string plain = "quire store layout 2\n";
  for (const std::string& text : {whole, plain}) {
    for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
      SCOPED_TRACE(text + "bit " + std::to_string(bit));
      std::string damaged = text;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
      write(marker, damaged);
      auto store = open();
      ASSERT_OK(store);
      EXPECT_OK((*store)->get_document("default", id_of(bit % kDocuments)));
      EXPECT_EQ(read(marker), whole);
    }
  }
}

TEST_F(StoreDamage, ARepairIsPossibleWithADamagedMarker) {
  write_documents(/*crash=*/true);
  for (const auto& file : files(""))
    if (file.filename().string().starts_with("MANIFEST-")) fs::resize_file(file, 10);
  write(options.path + "/STORE", "quire store layout 3\n");
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, kDocuments);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
}

TEST_F(StoreDamage, ARecordWithoutItsCurrentFileIsNotBegunAnew) {
  write_documents(/*crash=*/false);
  const auto manifest = files("").front();
  fs::copy_file(files("CURRENT").front(), options.path + "/db/MANIFEST-000999");
  fs::remove(options.path + "/db/CURRENT");
  EXPECT_EQ(open().code(), Code::kCorruption);
  EXPECT_FALSE(files(".sst").empty()) << "the tables are still there";
}

/// Every document is whole in the store, or named as lost or as a text.
void check_accounts(const RepairReport& report, const std::set<std::string>& there) {
  EXPECT_EQ(report.documents, there.size());
  std::set<std::string> named = there;
  for (const auto& d : report.texts) EXPECT_TRUE(named.insert(d.id).second) << d.id;
  for (const auto& d : report.lost) EXPECT_TRUE(named.insert(d.id).second) << d.id;
}

TEST_F(StoreDamage, ARecordWhoseMakingWasCutOffIsBegunAnew) {
  const std::string db = options.path + "/db";
  for (const std::string begun : {"", "half of an edit"}) {
    fs::remove_all(options.path);
    fs::create_directories(db);
    write(options.path + "/STORE", "quire store layout 2\n");
    write(db + "/IDENTITY", "a name");
    write(db + "/MANIFEST-000001", begun);
    EXPECT_OK(open());
  }
  // What has a log, or a ledger of acknowledged writes, was in use.
  for (const std::string used : {"/db/000004.log", "/LEDGER", "/db/LEDGER"}) {
    fs::remove_all(options.path);
    fs::create_directories(db);
    write(options.path + "/STORE", "quire store layout 2\n");
    write(db + "/MANIFEST-000001", "");
    write(options.path + used, "something");
    EXPECT_EQ(open().code(), Code::kCorruption) << used;
  }
}

TEST_F(StoreDamage, ARepairOfAWholeStoreKeepsEverything) {
  write_documents(/*crash=*/false);
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_EQ(report->documents, kDocuments);
  EXPECT_EQ(report->segments, kDocuments);
  EXPECT_TRUE(report->lost.empty());
  EXPECT_TRUE(report->texts.empty());
  EXPECT_TRUE(report->damage.empty()) << report->damage.front();
  EXPECT_FALSE(report->may_lack_documents);
  EXPECT_EQ(report->kept_folder, "");
  EXPECT_FALSE(fs::exists(options.path + "/repair"));
  ASSERT_OK(repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true}));
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  for (std::uint64_t i = 0; i < kDocuments; ++i) {
    auto handle = (*store)->find_segment(test::key_of(i));
    ASSERT_TRUE(handle) << "KV stays";
    EXPECT_OK(test::check_segment(**store, *handle, i));
  }
  EXPECT_EQ((*store)->namespaces().at(0).documents, kDocuments) << "the index is made anew";
  const auto verified = (*store)->verify();
  ASSERT_OK(verified);
  EXPECT_EQ(verified->bad_documents, 0u) << verified->problems.front();
}

TEST_F(StoreDamage, ATextThatADocumentHasDoesNotWaitAfterARepair) {
  {
    auto store = open();
    ASSERT_OK(store);
    const NamedText text{"job/0", "a text"};
    ASSERT_OK((*store)->put_job_and_texts("job", "input", {&text, 1}));
    DocumentManifest m = test::manifest_of("a", {1});
    m.chunks[0].key = {};
    m.chunks[0].byte_end = 5;
    CommitOptions commit;
    commit.waiting_text = text.name;
    ASSERT_OK((*store)->commit_document(m, std::nullopt, {}, commit));
  }
  {
    // As from a table that is read without a newer one, which says that this was deleted.
    namespace rocksdb = ::rocksdb;
    const std::string folder_of_record = options.path + "/db";
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, folder_of_record, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const auto& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open({}, folder_of_record, families, &handles, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    const auto at = to_size(std::ranges::find(names, "catalog") - names.begin());
    EXPECT_TRUE(
        db->Put({}, handles[at], named_key(kWaitingKind, "job/0"), record::encode_opaque("6"))
            .ok());
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
    ASSERT_TRUE(db->Close().ok());
  }
  ASSERT_EQ(open().code(), Code::kCorruption) << "it is not what was sealed";
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_TRUE((*store)->list_waiting_texts()->empty())
      << "the job is gone, and would take it along";
  EXPECT_EQ((*store)->get_text("default", "a").value_or("none"), "a text");
}

TEST_F(StoreDamage, ARepairByTablesAloneMakesTheChangesOfTheLogAgain) {
  write_documents(/*crash=*/false);
  // A log that one family still needs, of which another one has a table: RocksDB's own repair takes
  // both for new tables and gives up. Behind it a document is deleted.
  namespace rocksdb = ::rocksdb;
  const std::string record_folder = options.path + "/db", copy = options.path + "/copy";
  std::vector<std::string> names;
  ASSERT_TRUE(rocksdb::DB::ListColumnFamilies({}, record_folder, &names).ok());
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (const auto& name : names) families.emplace_back(name, rocksdb::ColumnFamilyOptions());
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* opened = nullptr;
  ASSERT_TRUE(rocksdb::DB::Open({}, record_folder, families, &handles, &opened).ok());
  const std::unique_ptr<rocksdb::DB> db(opened);
  const auto family = [&](std::string_view name) {
    return handles[to_size(std::ranges::find(names, name) - names.begin())];
  };
  EXPECT_TRUE(db->Put({}, family("meta"), "unread", "no record").ok());
  EXPECT_TRUE(db->Put({}, family("catalog"), "unread", "no record").ok());
  EXPECT_TRUE(db->Flush(rocksdb::FlushOptions(), family("catalog")).ok());
  for (const char kind : {kHeadKind, kTokensKind, kTextKind})
    EXPECT_TRUE(db->Delete({}, family("catalog"), catalog_key(kind, "default", id_of(3))).ok());
  fs::copy(record_folder, copy);
  for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
  ASSERT_TRUE(db->Close().ok());
  fs::remove_all(record_folder);
  fs::rename(copy, record_folder);
  for (const auto& file : files(""))
    if (file.filename().string().starts_with("MANIFEST-")) fs::resize_file(file, 10);
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  const auto there = documents(**store);
  EXPECT_EQ(there.size(), kDocuments - 1);
  EXPECT_FALSE(there.contains(id_of(3))) << "it was deleted";
  EXPECT_NE((*store)->stats().salvaged.find("; 0 documents are lost"), std::string::npos);
}

TEST_F(StoreDamage, ALostManifestLosesNoDocument) {
  write_documents(/*crash=*/false);
  for (const auto& e : fs::directory_iterator(options.path + "/db"))
    if (e.path().filename().string().starts_with("MANIFEST-")) fs::resize_file(e.path(), 10);
  const auto refused = open();
  ASSERT_EQ(refused.code(), Code::kCorruption);
  EXPECT_NE(refused.status().message().find("quire store repair"), std::string::npos);
  const auto dry = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(dry);
  EXPECT_EQ(dry->documents, kDocuments);
  EXPECT_EQ(open().code(), Code::kCorruption) << "a dry run changes nothing";
  options.on_damage = OnDamage::kSalvage;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_NE((*store)->stats().salvaged, "");
  EXPECT_TRUE((*store)->find_segment(test::key_of(3)));
  bool kept = false;
  for (const auto& e : fs::directory_iterator(options.path)) {
    if (!e.path().filename().string().starts_with("damaged-")) continue;
    kept = fs::exists(e.path() / "db") && fs::exists(e.path() / "report.txt");
  }
  EXPECT_TRUE(kept) << "the damaged record is kept";
}

TEST_F(StoreDamage, WithoutAManifestARepairKeepsWhatTheLogHas) {
  for (const bool tables : {false, true}) {
    SCOPED_TRACE(tables);
    for (const char* lost : {"MANIFEST-", "CURRENT"}) {
      SCOPED_TRACE(lost);
      fs::remove_all(options.path);
      std::uint64_t written = 0;
      if (tables) write_documents(/*crash=*/false, 0, written = kDocuments);
      write_documents(/*crash=*/true, written, kDocuments);
      written += kDocuments;
      for (const auto& file : files(""))
        if (file.filename().string().starts_with(lost)) fs::remove(file);
      const auto report = repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true});
      ASSERT_OK(report);
      EXPECT_EQ(report->documents, written);
      EXPECT_FALSE(report->may_lack_documents) << summary(*report);
      auto store = open();
      ASSERT_OK(store);
      EXPECT_EQ(documents(**store).size(), written);
      EXPECT_TRUE((*store)->find_segment(test::key_of(3)));
    }
  }
}

TEST_F(StoreDamage, ALogThatTheManifestKnowsMayBeMissing) {
  write_documents(/*crash=*/true);
  begin_another_log();
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 2u);
  for (const bool removed : {false, true}) {
    SCOPED_TRACE(removed);
    if (removed) {
      fs::remove(logs.front());
    } else {
      std::string bytes = read(logs.front());
      bytes[bytes.size() / 2] ^= 1;
      write(logs.front(), bytes);
    }
    ASSERT_EQ(open().code(), Code::kCorruption);
    const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
    ASSERT_OK(report);
    ASSERT_FALSE(report->damage.empty()) << "nobody knows what the change was";
    EXPECT_TRUE(report->may_lack_documents);
    EXPECT_EQ(report->documents, kDocuments) << "what the tables have";
  }
}

TEST_F(StoreDamage, TextOnlyLeavesTheKvBehind) {
  write_documents(/*crash=*/false);
  for (const auto& e : fs::directory_iterator(options.path + "/db"))
    if (e.path().filename().string().starts_with("MANIFEST-")) fs::resize_file(e.path(), 10);
  options.on_damage = OnDamage::kTextOnly;
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_FALSE((*store)->find_segment(test::key_of(3)));
  EXPECT_EQ((*store)->stats().segments, 0u);
}

TEST_F(StoreDamage, OneBadBlockOfATableCostsFewDocuments) {
  constexpr std::uint64_t kMany = 2 * kDocuments;
  write_documents(/*crash=*/false, 0, kMany);
  auto tables = files(".sst");
  ASSERT_FALSE(tables.empty());
  const auto largest = *std::max_element(tables.begin(), tables.end(), [](auto& a, auto& b) {
    return fs::file_size(a) < fs::file_size(b);
  });
  std::string bytes = read(largest);
  bytes[bytes.size() / 3] = static_cast<char>(bytes[bytes.size() / 3] ^ 0x10);
  write(largest, bytes);
  const auto report = repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_FALSE(report->damage.empty());
  auto store = open();
  ASSERT_OK(store);
  const auto there = documents(**store);
  check_accounts(*report, there);
  EXPECT_EQ(there.size() + report->texts.size() + report->lost.size(), kMany)
      << "each is whole or named";
}

TEST_F(StoreDamage, ATableWithTheContentOfAnotherIsLeftOut) {
  write_documents(/*crash=*/false);
  write_documents(/*crash=*/false, kDocuments);
  const auto tables = files(".sst");
  ASSERT_GE(tables.size(), 2u);
  for (const auto& table : tables) {
    for (const auto& other : tables) {
      if (table == other) continue;
      SCOPED_TRACE(table.filename().string() + " is " + other.filename().string());
      const std::string bytes = read(table);
      write(table, read(other));
      const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
      write(table, bytes);
      ASSERT_OK(report);
      EXPECT_TRUE(report->may_lack_documents) << summary(*report);
    }
  }
}

TEST_F(StoreDamage, ALogWithTheContentOfAnotherIsLeftOut) {
  write_documents(/*crash=*/true);
  begin_another_log();
  const auto logs = files(".log");
  ASSERT_EQ(logs.size(), 2u);
  const std::string first = read(logs.front()), second = read(logs.back());
  for (const bool swapped : {false, true}) {
    SCOPED_TRACE(swapped);
    // Longer than the manifest knows it, as only a shorter one is noticed by RocksDB.
    write(logs.front(), second + std::string(first.size(), '\0'));
    write(logs.back(), swapped ? first : second);
    ASSERT_EQ(open().code(), Code::kCorruption);
    const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
    ASSERT_OK(report);
    EXPECT_TRUE(report->may_lack_documents) << summary(*report);
    ASSERT_FALSE(report->damage.empty());
    EXPECT_NE(report->damage.front().find("has the content of another one"), std::string::npos);
  }
}

TEST_F(StoreDamage, ALogOfOtherBytesDoesNotHoldARepairUp) {
  write_documents(/*crash=*/true);
  begin_another_log();
  // Bytes that RocksDB takes for the header of a recycled log, in front of a whole block and
  // behind.
  const auto log = files(".log").back();
  write(log, std::string(40'000, '\6') + read(log));
  const auto report = repair_store({options.path, /*dry_run=*/true, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_FALSE(report->damage.empty());
  EXPECT_EQ(report->documents, kDocuments) << "what the tables have";
}

TEST_F(StoreDamage, VerifyTellsOfAPartOfTheRecordThatCannotBeRead) {
  constexpr std::uint64_t kMany = 8 * kDocuments;
  write_documents(/*crash=*/false, 0, kMany);
  const auto tables = files(".sst");
  ASSERT_FALSE(tables.empty());
  const auto largest = *std::max_element(tables.begin(), tables.end(), [](auto& a, auto& b) {
    return fs::file_size(a) < fs::file_size(b);
  });
  const std::string whole = read(largest);
  int told = 0;
  for (std::size_t part = 1; part < 20; ++part) {
    std::string bytes = whole;
    bytes[bytes.size() * part / 20] ^= 0x10;
    write(largest, bytes);
    auto store = open_admin_store(options);
    if (!store.ok()) {
      EXPECT_EQ(store.code(), Code::kCorruption);
      continue;
    }
    const auto report = (*store)->verify();
    ASSERT_OK(report);
    told += report->bad_documents > 0 ? 1 : 0;
    for (std::uint64_t i = 0; i < kMany; ++i) {
      const auto text = (*store)->get_text("default", id_of(i));
      if (text.ok()) {
        EXPECT_EQ(*text, test::text_of(id_of(i)));
      } else {
        EXPECT_GT(report->bad_documents, 0u) << text.status().to_string();
      }
    }
  }
  EXPECT_GT(told, 0);
}

TEST_F(StoreDamage, WithoutItsTablesARepairKeepsWhatTheLogHas) {
  write_documents(/*crash=*/false);
  write_documents(/*crash=*/true, kDocuments);
  const auto tables = files(".sst");
  ASSERT_FALSE(tables.empty());
  for (const auto& table : tables) fs::remove(table);
  const auto report = repair_store({options.path, /*dry_run=*/false, /*keep_kv=*/true});
  ASSERT_OK(report);
  EXPECT_TRUE(report->may_lack_documents);
  EXPECT_NE(summary(*report).find("not even the id"), std::string::npos);
  auto store = open();
  ASSERT_OK(store);
  const auto there = documents(**store);
  EXPECT_EQ(there.size(), kDocuments);
  EXPECT_TRUE(there.contains(id_of(kDocuments)));
}

TEST_F(StoreDamage, ABackupIsIncrementalVerifiedAndComesBack) {
  const std::string backups = folder.path("backups"), restored = folder.path("restored");
  EXPECT_EQ(restore_store(backups, restored).code(), Code::kNotFound);
  fs::create_directory(folder.path("empty"));
  const auto none = restore_store(folder.path("empty"), restored);
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_NE(none.status().message().find("there is no backup in"), std::string::npos);
  {
    auto store = open_admin_store(options);
    ASSERT_OK(store);
    for (std::uint64_t i = 0; i < 4; ++i) ASSERT_OK(test::put_document(**store, id_of(i), {i}));
    const auto first = (*store)->backup(backups, 2);
    ASSERT_OK(first);
    EXPECT_EQ(first->backups, 1u);
    EXPECT_GT(first->bytes, 0u);
    for (std::uint64_t i = 4; i < 8; ++i) ASSERT_OK(test::put_document(**store, id_of(i), {i}));
    ASSERT_OK((*store)->backup(backups, 2));
    ASSERT_OK(test::put_document(**store, id_of(8), {8}));
    const auto third = (*store)->backup(backups, 2);
    ASSERT_OK(third);
    EXPECT_EQ(third->number, 3u);
    EXPECT_EQ(third->backups, 2u) << "two are kept";
    for (const char* within : {"", "/backups"})
      EXPECT_EQ((*store)->backup(folder.path() + within, 0).status().field(), "to")
          << "it would be lost with the store";
  }
  ASSERT_OK(restore_store(backups, restored));
  EXPECT_EQ(restore_store(backups, restored).code(), Code::kFailedPrecondition);
  options.path = restored;
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), 9u);
    EXPECT_FALSE((*store)->find_segment(test::key_of(1))) << "without KV";
    EXPECT_EQ((*store)->stats().lost.count, 0u);
  }
  for (const auto& e : fs::recursive_directory_iterator(backups)) {
    if (!e.is_regular_file() || e.path().extension() != ".sst") continue;
    std::string bytes = read(e.path());
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    write(e.path(), bytes);
  }
  EXPECT_EQ(restore_store(backups, folder.path("other")).code(), Code::kCorruption);
}

/// Flips a bit of a file, or cuts it.
void spoil(const fs::path& file, bool cut) {
  if (cut) return fs::resize_file(file, fs::file_size(file) / 2);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  bytes.seekg(middle);
  const int byte = bytes.get();
  bytes.seekp(middle);
  bytes.put(static_cast<char>(byte ^ 1));
}

TEST_F(StoreDamage, AnOlderBackupCanBeRestoredAndADamagedOneNamesIt) {
  const std::string backups = folder.path("backups");
  EXPECT_EQ(list_backups(backups).code(), Code::kNotFound);
  {
    auto store = open_admin_store(options);
    ASSERT_OK(store);
    for (std::uint64_t i = 0; i < 4; ++i) {
      ASSERT_OK(test::put_document(**store, id_of(i), {i}));
      ASSERT_OK((*store)->backup(backups, 0));
    }
  }
  const auto list = list_backups(backups);
  ASSERT_OK(list);
  ASSERT_EQ(list->size(), 4u);
  for (std::uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*list)[i].number, i + 1);
    EXPECT_GT((*list)[i].made_ms, 0);
    EXPECT_GT((*list)[i].bytes, 0u);
    EXPECT_FALSE((*list)[i].unusable);
  }
  ASSERT_OK(restore_store(backups, folder.path("first"), 1));
  options.path = folder.path("first");
  {
    auto store = open();
    ASSERT_OK(store);
    EXPECT_EQ(documents(**store).size(), 1u);
  }
  const auto none = restore_store(backups, folder.path("other"), 7);
  EXPECT_EQ(none.code(), Code::kNotFound);
  EXPECT_EQ(none.status().field(), "backup");

  // The newest one is damaged, and of the one before a file is missing.
  for (const auto& e : fs::directory_iterator(backups + "/private/4")) spoil(e.path(), false);
  fs::remove_all(backups + "/private/3");
  auto newest = restore_store(backups, folder.path("other"));
  EXPECT_EQ(newest.code(), Code::kCorruption);
  const std::string fix = "'quire store restore " + backups + " --backup 2'";
  EXPECT_NE(newest.status().message().find(fix), std::string::npos) << newest.status().to_string();
  EXPECT_FALSE(fs::exists(folder.path("other")));
  // An older one is never taken in silence.
  fs::remove_all(backups + "/private/4");
  newest = restore_store(backups, folder.path("other"));
  EXPECT_EQ(newest.code(), Code::kCorruption);
  EXPECT_NE(newest.status().message().find(fix), std::string::npos) << newest.status().to_string();
  const auto left = list_backups(backups);
  ASSERT_OK(left);
  ASSERT_EQ(left->size(), 4u);
  EXPECT_FALSE((*left)[1].unusable);
  EXPECT_TRUE((*left)[2].unusable && (*left)[3].unusable);
  const auto second = restore_store(backups, folder.path("other"), 2);
  ASSERT_OK(second);
  EXPECT_EQ(second->number, 2u);
  options.path = folder.path("other");
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 2u);
}

/// A kill leaves files without CURRENT and half of a manifest, as a power failure leaves them of a
/// whole record, too.
TEST_F(StoreDamage, HalfOfABackupIsNoStoreAndTheNextRestoreEndsIt) {
  const std::string backups = folder.path("backups"), restored = folder.path("restored");
  {
    auto store = open_admin_store(options);
    ASSERT_OK(store);
    for (std::uint64_t i = 0; i < 5; ++i) ASSERT_OK(test::put_document(**store, id_of(i), {i}));
    ASSERT_OK((*store)->backup(backups, 0));
  }
  ASSERT_OK(restore_store(backups, restored));
  fs::remove(restored + "/db/CURRENT");
  for (const auto& e : fs::directory_iterator(restored + "/db"))
    if (e.path().filename().string().starts_with("MANIFEST-")) spoil(e.path(), /*cut=*/true);
  write(restored + "/RESTORING", "");
  options.path = restored;
  for (const bool read_only : {false, true}) {
    options.read_only = read_only;
    const auto opened = open();
    EXPECT_EQ(opened.code(), Code::kFailedPrecondition) << opened.status().to_string();
    EXPECT_NE(opened.status().message().find("quire store restore"), std::string::npos);
  }
  options.read_only = false;
  for (const bool dry_run : {true, false})
    EXPECT_EQ(repair_store({restored, dry_run}).code(), Code::kFailedPrecondition);
  ASSERT_OK(restore_store(backups, restored));
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), 5u);
}

/// Tables that an earlier backup has are not copied again, so a rotten one would spoil every later
/// backup.
TEST_F(StoreDamage, ARottenTableOfEarlierBackupsIsCopiedAgain) {
  const auto tables = [](const std::string& of) {
    std::vector<fs::path> out;
    for (const auto& e : fs::recursive_directory_iterator(of))
      if (e.path().extension() == ".sst") out.push_back(e.path());
    return out;
  };
  for (const bool cut : {false, true}) {
    SCOPED_TRACE(cut);
    const std::string backups = folder.path(cut ? "backups-cut" : "backups");
    options.path = folder.path(cut ? "store-cut" : "store");
    auto store = open_admin_store(options);
    ASSERT_OK(store);
    ASSERT_OK(test::put_document(**store, id_of(0), {0}));
    ASSERT_OK((*store)->backup(backups, 0));
    ASSERT_FALSE(tables(backups).empty());
    for (const fs::path& table : tables(backups)) spoil(table, cut);
    ASSERT_OK(test::put_document(**store, id_of(1), {1}));
    const auto made = (*store)->backup(backups, 0);
    ASSERT_OK(made);
    EXPECT_EQ(made->backups, 2u) << "the earlier one stays";
    // Both are whole.
    const auto list = list_backups(backups);
    ASSERT_OK(list);
    for (const BackupReport& backup : *list) {
      const std::string to = folder.path((cut ? "cut-" : "") + std::to_string(backup.number));
      EXPECT_OK(restore_store(backups, to, backup.number));
    }
    // Where a table cannot be replaced, the backup says what to do.
    for (const fs::path& table : tables(backups)) {
      spoil(table, cut);
      fs::create_directory(table.string() + ".tmp");
    }
    const auto failed = (*store)->backup(backups, 0);
    EXPECT_FALSE(failed.ok());
    EXPECT_NE(failed.status().message().find("another folder"), std::string::npos)
        << failed.status().to_string();
  }
}

TEST_F(StoreDamage, AnInterruptedReplacementIsEnded) {
  write_documents(/*crash=*/false);
  fs::create_directory(options.path + "/repair");
  fs::rename(options.path + "/db", options.path + "/repair/db");
  write(options.path + "/NEW_RECORD", options.path + "/repair/db\n");
  auto store = open();
  ASSERT_OK(store);
  EXPECT_EQ(documents(**store).size(), kDocuments);
  EXPECT_FALSE(fs::exists(options.path + "/NEW_RECORD"));
}

/// Damages random files of a store. Afterwards every document is right, or its store says what it
/// lost.
TEST_F(StoreDamage, RandomDamageIsNeverSilentAndNeverWrong) {
  const int rounds = test::env_int("QUIRE_DAMAGE_ROUNDS", 40);
  const auto first_seed = static_cast<std::uint64_t>(test::env_int("QUIRE_DAMAGE_SEED", 1));
  options.on_damage = OnDamage::kSalvage;
  int salvaged = 0, lost_said = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t seed = first_seed + static_cast<std::uint64_t>(round);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 rng(seed);
    fs::remove_all(options.path);
    write_documents(/*crash=*/rng() % 2 == 0, 0, kDocuments);
    if (rng() % 2 == 0) write_documents(/*crash=*/rng() % 2 == 0, 0, kDocuments);
    std::vector<fs::path> all;
    for (const auto& e : fs::recursive_directory_iterator(options.path))
      if (e.is_regular_file()) all.push_back(e.path());
    std::sort(all.begin(), all.end());
    SCOPED_TRACE(damage_some(all, 1 + rng() % 2, rng));
    auto store = open();
    ASSERT_OK(store);
    std::set<std::string> there;
    int unreadable = 0;
    for (std::uint64_t i = 0; i < kDocuments; ++i) {
      const auto text = (*store)->get_text("default", id_of(i));
      if (text.ok()) {
        EXPECT_EQ(*text, test::text_of(id_of(i)));
        there.insert(id_of(i));
      } else if (text.code() != Code::kNotFound) {
        ++unreadable;
      }
      if (auto handle = (*store)->find_segment(test::key_of(i))) {
        const Status s = test::check_segment(**store, *handle, i);
        EXPECT_TRUE(s.ok() || s.code() == Code::kCorruption || s.code() == Code::kIo)
            << s.to_string();
      }
    }
    const StoreStats stats = (*store)->stats();
    salvaged += stats.salvaged.empty() ? 0 : 1;
    lost_said += stats.lost.count > 0 ? 1 : 0;
    if (there.size() < kDocuments) {
      EXPECT_TRUE(!stats.salvaged.empty() || stats.lost.count > 0 || unreadable > 0)
          << "documents vanished without a word";
    }
  }
  RecordProperty("salvaged", salvaged);
  RecordProperty("lost_said", lost_said);
}

}  // namespace
}  // namespace quire
