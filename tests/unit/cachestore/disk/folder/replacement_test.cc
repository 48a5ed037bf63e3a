// The new record of a repair takes the place of the old one, whatever of that was done before.
#include "cachestore/disk/folder/replacement.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class ReplacementTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* file : {"SEAL", "LEDGER", "EDITS", "WANTS_COPY"}) write(file, "old");
    write("db/CURRENT", "old");
    write("extents/00000001.extent", "KV");
    write("repair/db/CURRENT", "new");
    fs::create_directory(root + "/kept");
  }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root + "/" + name).parent_path());
    std::ofstream(root + "/" + name, std::ios::binary) << text;
  }
  std::string read(const std::string& name) const {
    std::ifstream in(root + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  bool has(const std::string& name) const { return fs::exists(root + "/" + name); }
  void move(const std::string& name, const std::string& to) const {
    fs::rename(root + "/" + name, root + "/" + to);
  }
  /// Expects the new record, and in `kept` the old one with what lay beside it.
  void expect_replaced(const std::string& kept, bool keep_kv = true) const {
    EXPECT_EQ(read("db/CURRENT"), "new");
    EXPECT_EQ(read(kept + "/db/CURRENT"), "old");
    for (const char* file : {"SEAL", "LEDGER", "EDITS"}) {
      EXPECT_FALSE(has(file)) << file;
      EXPECT_EQ(read(kept + "/" + file), "old") << file;
    }
    EXPECT_EQ(has("extents"), keep_kv);
    EXPECT_EQ(has(kept + "/extents"), !keep_kv);
    EXPECT_FALSE(has("NEW_RECORD"));
    EXPECT_FALSE(has("NEW_RECORD.tmp"));
    EXPECT_FALSE(has("WANTS_COPY"));
    EXPECT_FALSE(is_replacing(root));
  }
  void expect_as_it_was() const {
    EXPECT_EQ(read("db/CURRENT"), "old");
    for (const char* file : {"SEAL", "LEDGER", "EDITS", "WANTS_COPY"})
      EXPECT_EQ(read(file), "old") << file;
    EXPECT_TRUE(has("extents"));
    EXPECT_FALSE(is_replacing(root));
  }

  test::TempFolder folder;
  const std::string root = folder.path();
};

TEST_F(ReplacementTest, ALineIsParsedAndDamageOfItFound) {
  for (const bool keep_kv : {false, true}) {
    const Replacement whole{"damaged-20260102T030405Z-1", keep_kv};
    const auto parsed = Replacement::parse(whole.text());
    ASSERT_TRUE(parsed);
    EXPECT_EQ(parsed->kept, whole.kept);
    EXPECT_EQ(parsed->keep_kv, keep_kv);
    for (std::size_t bit = 0; bit < 8 * whole.text().size(); ++bit) {
      std::string text = whole.text();
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      EXPECT_FALSE(Replacement::parse(text)) << bit;
    }
  }
  for (const char* text : {"", "\n", " ", "/var/lib/store/repair/db\n", "damaged-1 1 \n"})
    EXPECT_FALSE(Replacement::parse(text)) << text;
}

TEST_F(ReplacementTest, TheOldRecordGoesWithWhatLiesBesideIt) {
  ASSERT_OK(replace_record(root, {"kept", true}));
  expect_replaced("kept");
}

TEST_F(ReplacementTest, WithoutItsKvThatGoesToo) {
  ASSERT_OK(replace_record(root, {"kept", false}));
  expect_replaced("kept", /*keep_kv=*/false);
}

TEST_F(ReplacementTest, NothingIsMovedWithoutANewRecord) {
  fs::remove_all(root + "/repair");
  EXPECT_EQ(replace_record(root, {"kept", true}).code(), Code::kIo);
  expect_as_it_was();
}

TEST_F(ReplacementTest, WhateverWasDoneIsGoneOnWith) {
  const std::vector<std::pair<std::string, std::string>> steps = {
      {"db", "kept/db"},       {"SEAL", "kept/SEAL"},       {"LEDGER", "kept/LEDGER"},
      {"EDITS", "kept/EDITS"}, {"extents", "kept/extents"}, {"repair/db", "db"}};
  for (std::size_t done = 0; done <= steps.size(); ++done) {
    SCOPED_TRACE(done);
    fs::remove_all(root);
    SetUp();
    write("NEW_RECORD", Replacement{"kept", false}.text());
    for (std::size_t i = 0; i < done; ++i) move(steps[i].first, steps[i].second);
    EXPECT_TRUE(is_replacing(root));
    ASSERT_OK(end_replacement(root));
    expect_replaced("kept", /*keep_kv=*/false);
    EXPECT_FALSE(has("repair"));
    ASSERT_OK(end_replacement(root));
    expect_replaced("kept", /*keep_kv=*/false);
  }
}

TEST_F(ReplacementTest, WithoutTheNewRecordTheOldOneComesBack) {
  for (const bool moved : {false, true}) {
    SCOPED_TRACE(moved);
    fs::remove_all(root);
    SetUp();
    write("NEW_RECORD", Replacement{"kept", true}.text());
    if (moved)
      for (const char* name : {"db", "SEAL", "EDITS"}) move(name, std::string("kept/") + name);
    fs::remove_all(root + "/repair");
    ASSERT_OK(end_replacement(root));
    expect_as_it_was();
  }
}

TEST_F(ReplacementTest, ThatOfAnOlderProgramIsEnded) {
  // It had moved what lies beside the record first, and named the new record by its path.
  for (const bool moved : {false, true}) {
    SCOPED_TRACE(moved);
    fs::remove_all(root);
    SetUp();
    for (const char* name : {"SEAL", "LEDGER", "EDITS"}) fs::remove(root + "/" + name);
    write("NEW_RECORD", "./data/repair/db\n");
    if (moved) move("db", "kept/db");
    ASSERT_OK(end_replacement(root));
    EXPECT_EQ(read("db/CURRENT"), "new");
    EXPECT_EQ(read(moved ? "kept/db/CURRENT" : "damaged-interrupted/db/CURRENT"), "old");
    EXPECT_FALSE(is_replacing(root));
  }
}

}  // namespace
}  // namespace quire
