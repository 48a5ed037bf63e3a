/// A store whose files a test damages, and a child process that writes its documents.
#pragma once

#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/format/catalog_keys.h"
#include "cachestore/store_admin.h"
#include "tests/support/harness/test_store.h"

namespace quire {

namespace fs = std::filesystem;

inline constexpr std::uint64_t kDocuments = 12;

inline std::string id_of(std::uint64_t n) { return "d" + std::to_string(n); }

/// The test binary has the child of store_damage_test.cc.
class StoreDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    options.path = folder.path();
    options.dram_bytes = 0;
  }
  Result<std::unique_ptr<Store>> open() { return open_store(options); }
  /// Writes documents in a process that dies, so that they lie in the log, or in one that closes
  /// the store.
  void write_documents(bool crash, std::uint64_t first = 0, std::uint64_t count = kDocuments) {
    const pid_t child = ::fork();
    if (child == 0) {
      // RocksDB's threads of this process are not in the child, so it begins anew.
      ::setenv("QUIRE_DAMAGE_CHILD", options.path.c_str(), 1);
      ::setenv("QUIRE_DAMAGE_COPY", options.copy_path.c_str(), 1);
      ::setenv("QUIRE_DAMAGE_MORE", std::to_string(more_kib).c_str(), 1);
      ::setenv("QUIRE_DAMAGE_CRASH", crash ? "1" : "0", 1);
      ::setenv("QUIRE_DAMAGE_FIRST", std::to_string(first).c_str(), 1);
      ::setenv("QUIRE_DAMAGE_COUNT", std::to_string(count).c_str(), 1);
      ::execl("/proc/self/exe", "child", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
              "--gtest_filter=StoreDamageChild.*", nullptr);
      ::_exit(127);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }
  /// Leaves the record as a crash does after one family was written to a table and another was not:
  /// with two logs, the first of which the manifest knows.
  void begin_another_log() {
    namespace rocksdb = ::rocksdb;
    const std::string record = options.path + "/db", copy = options.path + "/copy";
    rocksdb::Options o;
    o.track_and_verify_wals_in_manifest = true;
    std::vector<std::string> names;
    ASSERT_TRUE(rocksdb::DB::ListColumnFamilies(o, record, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const auto& name : names) families.emplace_back(name, o);
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(o, record, families, &handles, &opened).ok());
    const std::unique_ptr<rocksdb::DB> db(opened);
    rocksdb::WriteOptions synced;
    synced.sync = true;
    const auto put = [&](std::string_view family) {
      const auto at = std::ranges::find(names, family) - names.begin();
      auto* const handle = handles[static_cast<std::size_t>(at)];
      EXPECT_TRUE(db->Put(synced, handle, "unread", "no record").ok());
      return handle;
    };
    put("meta");
    ASSERT_TRUE(db->Flush(rocksdb::FlushOptions(), put("jobs")).ok());
    put("meta");
    fs::copy(record, copy);
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
    ASSERT_TRUE(db->Close().ok());
    fs::remove_all(record);
    fs::rename(copy, record);
  }
  /// Returns whether tables that the manifest knows have what was written besides document `n`, but
  /// not the document before it, which only the log has.
  bool tables_have_only_more_of(std::uint64_t n) const {
    namespace rocksdb = ::rocksdb;
    const std::string copy = folder.path("tables");
    fs::copy(options.path + "/db", copy);
    for (const auto& log : files(".log")) fs::remove(fs::path(copy) / log.filename());
    rocksdb::Options o;
    o.disable_auto_compactions = true;
    std::vector<std::string> names;
    EXPECT_TRUE(rocksdb::DB::ListColumnFamilies(o, copy, &names).ok());
    std::vector<rocksdb::ColumnFamilyDescriptor> families;
    for (const auto& name : names) families.emplace_back(name, o);
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    rocksdb::DB* opened = nullptr;
    const auto status = rocksdb::DB::Open(o, copy, families, &handles, &opened);
    EXPECT_TRUE(status.ok()) << status.ToString();
    if (!status.ok()) return false;
    const std::unique_ptr<rocksdb::DB> db(opened);
    const std::string head = catalog_key(kHeadKind, "default", id_of(n));
    bool has_more = false, has_document = false;
    for (auto* handle : handles) {
      const std::unique_ptr<rocksdb::Iterator> it(db->NewIterator({}, handle));
      for (it->SeekToFirst(); it->Valid(); it->Next()) {
        has_more = has_more || it->key().ends_with("more" + std::to_string(n));
        has_document = has_document || it->key() == head;
      }
      EXPECT_TRUE(it->status().ok()) << it->status().ToString();
    }
    for (auto* handle : handles) (void)db->DestroyColumnFamilyHandle(handle);
    EXPECT_TRUE(db->Close().ok());
    fs::remove_all(copy);
    return has_more && !has_document;
  }
  std::vector<fs::path> files(const std::string& suffix) const {
    std::vector<fs::path> out;
    for (const auto& e : fs::directory_iterator(options.path + "/db"))
      if (e.path().filename().string().ends_with(suffix)) out.push_back(e.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  /// Returns the documents that are there; each must be whole.
  std::set<std::string> documents(Store& store) {
    std::set<std::string> there;
    for (std::uint64_t i = 0; i < 2 * kDocuments; ++i) {
      const std::string id = id_of(i);
      const auto m = store.get_document("default", id);
      if (m.code() == Code::kNotFound) continue;
      EXPECT_OK(m);
      EXPECT_EQ(store.get_text("default", id).value_or(""), test::text_of(id));
      there.insert(id);
    }
    return there;
  }
  /// Expects that of so many documents, written in their order, the first ones are there and no
  /// others. Returns how many.
  static std::uint64_t first_documents(Store& store, std::uint64_t written) {
    std::uint64_t there = 0;
    while (there < written && store.get_text("default", id_of(there)).ok()) ++there;
    for (std::uint64_t i = there; i < written; ++i)
      EXPECT_EQ(store.get_document_head("default", id_of(i)).code(), Code::kNotFound) << i;
    return there;
  }
  /// Puts zeros in the place of a record in the middle of a log, as a write that went astray leaves
  /// them, or without `whole` of a part of it. Returns the number of records behind it.
  static std::size_t lose_a_record(const fs::path& log, std::size_t which, bool whole = true) {
    std::string bytes = read(log);
    const LogRecords found = log_records(bytes);
    const auto begin = static_cast<std::ptrdiff_t>(found.ends.at(which - 1)),
               end = static_cast<std::ptrdiff_t>(found.ends.at(which));
    std::fill(bytes.begin() + begin + (whole ? 0 : 20), bytes.begin() + end, '\0');
    write(log, bytes);
    return found.records.size() - which - 1;
  }
  /// Puts zeros in the place of so many records at the beginning of a log.
  static void lose_first_records(const fs::path& log, std::size_t count) {
    std::string bytes = read(log);
    std::fill_n(bytes.begin(), log_records(bytes).ends.at(count - 1), '\0');
    write(log, bytes);
  }
  static std::string read(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Leaves a ledger without entries and its twin, as a power failure may.
  static void empty_ledgers(const std::string& store) {
    for (const char* name : {"/LEDGER", "/db/LEDGER"}) write(store + name, "");
  }
  static void write(const fs::path& path, const std::string& text) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }
  /// Returns all that lies in the store's folder: files with what they hold, folders.
  std::map<std::string, std::string> contents() const {
    std::map<std::string, std::string> out;
    for (const auto& e : fs::recursive_directory_iterator(options.path))
      out[e.path().string()] = e.is_regular_file() ? read(e.path()) : "a folder";
    return out;
  }
  fs::path manifest() const {
    std::string name = read(options.path + "/db/CURRENT");
    return options.path + "/db/" + name.substr(0, name.find('\n'));
  }

  /// Damages so many of the files: a bit, a cut, emptied, another one's content, or removed.
  /// Returns what it did.
  static std::string damage_some(const std::vector<fs::path>& all, std::uint64_t count,
                                 std::mt19937_64& rng) {
    std::string what;
    for (; count > 0; --count) {
      const fs::path file = all[rng() % all.size()];
      if (!fs::exists(file)) continue;
      std::string bytes = read(file);
      const auto kind = rng() % 5;
      what += file.filename().string() + " kind " + std::to_string(kind) + "; ";
      if (kind == 0 && !bytes.empty())
        bytes[rng() % bytes.size()] ^= static_cast<char>(1 << rng() % 8);
      if (kind == 1) bytes.resize(bytes.size() * (rng() % 100) / 100);
      if (kind == 2) bytes.clear();
      if (kind == 3) bytes = read(all[rng() % all.size()]);
      fs::remove(file);
      if (kind != 4) write(file, bytes);
    }
    return what;
  }

  test::TempFolder folder;
  StoreOptions options;
  /// The child writes so much besides with each document, of another family, into small tables.
  std::uint64_t more_kib = 0;
};

}  // namespace quire
