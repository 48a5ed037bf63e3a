#include "cachestore/disk/write_ledger.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <optional>
#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

/// A database of two families that keeps what is put there.
struct Slots {
  std::map<std::pair<int, std::size_t>, std::uint64_t> of;
  void put(std::uint64_t number, WriteLedger::Families families) {
    for (int f = 0; f < 2; ++f)
      if (families >> f & 1) of[{f, number % WriteLedger::kSlots}] = number;
  }
  WriteLedger::SlotReader reader() {
    return [this](int family, std::size_t slot) {
      const auto it = of.find({family, slot});
      return it == of.end() ? std::uint64_t{0} : it->second;
    };
  }
};

class WriteLedgerTest : public ::testing::Test {
 protected:
  test::TempFolder folder;
  Slots slots;
  /// Writes through a ledger and returns the database after the n-th write, for each n.
  std::vector<Slots> write(int n, WriteLedger::Families families = 1) {
    WriteLedger ledger;
    EXPECT_OK(ledger.open(folder.path()));
    EXPECT_EQ(ledger.compare(2, slots.reader()).count, 0u);
    EXPECT_OK(ledger.forget());
    std::vector<Slots> after;
    for (int i = 0; i < n; ++i) {
      const std::uint64_t number = ledger.next().number;
      slots.put(number, families);
      ledger.add(number, families, 1000 + i);
      after.push_back(slots);
    }
    return after;
  }
  LostWrites check() {
    WriteLedger ledger;
    EXPECT_OK(ledger.open(folder.path()));
    const LostWrites lost = ledger.compare(2, slots.reader());
    EXPECT_OK(ledger.forget());
    return lost;
  }
};

TEST_F(WriteLedgerTest, NothingIsLostOfADatabaseThatHasAll) {
  EXPECT_EQ(check().count, 0u) << "a new one";
  write(10);
  EXPECT_EQ(check().count, 0u);
  write(3000);
  EXPECT_EQ(check().count, 0u) << "more than it has room for";
}

TEST_F(WriteLedgerTest, ALostTailIsCountedWithItsTimes) {
  const auto after = write(100);
  slots = after[92];
  const LostWrites lost = check();
  EXPECT_EQ(lost.count, 7u);
  EXPECT_FALSE(lost.at_least);
  EXPECT_EQ(lost.first_ms, 1093);
  EXPECT_EQ(lost.last_ms, 1099);
  EXPECT_EQ(check().count, 0u) << "it is said once";
  write(5);
  EXPECT_EQ(check().count, 0u) << "new writes are not taken for lost ones";
}

/// A process may end between keeping what is lost and forgetting it here.
TEST_F(WriteLedgerTest, WhatWasComparedBeforeCountsOnce) {
  const auto after = write(100);
  slots = after[92];
  {
    WriteLedger ledger;
    ASSERT_OK(ledger.open(folder.path()));
    EXPECT_EQ(ledger.compare(2, slots.reader()).count, 7u);
    EXPECT_EQ(ledger.last(), 100u);
  }
  WriteLedger ledger;
  ASSERT_OK(ledger.open(folder.path(), /*compared=*/100));
  EXPECT_EQ(ledger.compare(2, slots.reader()).count, 0u);
  ASSERT_OK(ledger.forget());
  const std::uint64_t next = ledger.next().number;
  EXPECT_EQ(next, 101u) << "a lost write's number is not given anew";
  ledger.add(next, 1, 2000);
  ledger.read(/*compared=*/100);
  const LostWrites lost = ledger.compare(2, slots.reader());
  EXPECT_EQ(lost.count, 1u);
  EXPECT_EQ(lost.first_ms, 2000);
}

TEST_F(WriteLedgerTest, ALossInOneFamilyIsSeen) {
  write(10, 3);
  for (auto& [key, number] : slots.of)
    if (key.first == 1 && number > 6) number -= WriteLedger::kSlots < 6 ? 1 : number;
  EXPECT_EQ(check().count, 4u);
}

TEST_F(WriteLedgerTest, MoreThanItKnowsIsSaidAsAtLeast) {
  write(3000);
  slots.of.clear();
  const LostWrites lost = check();
  EXPECT_EQ(lost.count, WriteLedger::kEntries);
  EXPECT_TRUE(lost.at_least);
}

TEST_F(WriteLedgerTest, DamagedEntriesCountForNothing) {
  write(10);
  {
    std::fstream file(folder.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (int entry = 0; entry < 20; ++entry) {
      file.seekp(entry * 32 + 3);
      file.put('x');
    }
  }
  slots.of.clear();
  EXPECT_EQ(check().count, 0u);
  std::ofstream(folder.path()) << "short";
  EXPECT_EQ(check().count, 0u);
}

TEST_F(WriteLedgerTest, WhatEitherOfBothFilesHasCounts) {
  const std::string twin = folder.path("twin");
  for (const std::string& damaged : {folder.path(), twin, std::string()}) {
    SCOPED_TRACE(damaged);
    slots.of.clear();
    for (const std::string& path : {folder.path(), twin}) std::filesystem::remove(path);
    {
      WriteLedger ledger;
      ASSERT_OK(ledger.open(folder.path(), 0, twin));
      for (int i = 0; i < 10; ++i) ledger.add(ledger.next().number, 1, 1000 + i);
    }
    if (!damaged.empty()) std::ofstream(damaged) << "short";
    WriteLedger ledger;
    ASSERT_OK(ledger.open(folder.path(), 0, twin));
    EXPECT_EQ(ledger.entries().size(), 10u) << "each counts once";
    const LostWrites lost = ledger.compare(2, slots.reader());
    EXPECT_EQ(lost.count, 10u);
    EXPECT_EQ(lost.first_ms, 1000);
    EXPECT_EQ(lost.last_ms, 1009);
    ASSERT_OK(ledger.forget());
    for (const std::string& path : {folder.path(), twin})
      EXPECT_EQ(std::filesystem::file_size(path), 0u);
  }
}

TEST_F(WriteLedgerTest, ATwinThatCannotBeOpenedIsLeftOut) {
  const std::string twin = folder.path("twin");
  std::filesystem::create_directory(twin);
  {
    WriteLedger ledger;
    ASSERT_OK(ledger.open(folder.path(), 0, twin));
    ledger.add(ledger.next().number, 1, 1000);
  }
  EXPECT_EQ(check().count, 1u);
}

TEST_F(WriteLedgerTest, WhatCannotBeReadIsNotCalledLost) {
  write(10);
  WriteLedger ledger;
  ASSERT_OK(ledger.open(folder.path()));
  const LostWrites lost = ledger.compare(2,
                                         [](int, std::size_t) { return WriteLedger::kUnreadable; });
  EXPECT_EQ(lost.count, 0u);
  EXPECT_EQ(ledger.next().number, 11u);
}

TEST_F(WriteLedgerTest, NumbersAreFoundInALogThatCannotBeRead) {
  // A put of a batch: length of the key, key, length of the value, value.
  const auto put = [](std::uint64_t number, std::size_t slot) {
    return '\2' + WriteLedger::slot_key(slot) + '\x08' + WriteLedger::slot_value(number);
  };
  const auto in_slot = [&](std::uint64_t number) {
    return put(number, number % WriteLedger::kSlots);
  };
  const std::string other = std::string("text \2 of a document") + '\0' + "\2";
  EXPECT_EQ(WriteLedger::last_in_log("", 7), 7u);
  EXPECT_EQ(WriteLedger::last_in_log(other, 7), 7u);
  EXPECT_EQ(WriteLedger::last_in_log(other + in_slot(9) + other + in_slot(8) + other, 7), 9u);
  EXPECT_EQ(WriteLedger::last_in_log(in_slot(300) + in_slot(511), 7), 511u);
  EXPECT_EQ(WriteLedger::last_in_log(in_slot(5) + in_slot(7), 7), 7u) << "the database has them";
  EXPECT_EQ(WriteLedger::last_in_log(put(9, 10), 7), 7u) << "no write puts it there";
  EXPECT_EQ(WriteLedger::last_in_log(in_slot(7 + (2u << 20)), 7), 7u) << "no number is so far";
  const std::string cut = in_slot(9);
  for (std::size_t size = 0; size < cut.size(); ++size)
    EXPECT_EQ(WriteLedger::last_in_log(cut.substr(0, size), 7), 7u) << size;
}

TEST_F(WriteLedgerTest, ASlowWriteIsNotOvertakenInItsSlot) {
  WriteLedger ledger;
  ASSERT_OK(ledger.open(folder.path("ledger")));
  EXPECT_EQ(ledger.compare(2, slots.reader()).count, 0u);
  std::optional<WriteLedger::Turn> slow = ledger.next();
  for (std::size_t i = 1; i < WriteLedger::kSlots; ++i) (void)ledger.next();
  std::promise<std::uint64_t> later;
  auto number = later.get_future();
  std::thread other([&] { later.set_value(ledger.next().number); });
  EXPECT_EQ(number.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  EXPECT_EQ(slow->number, 1u);
  slow.reset();
  EXPECT_EQ(number.get(), WriteLedger::kSlots + 1);
  other.join();
}

}  // namespace
}  // namespace quire
