// The pool of device memory, the copy stream, and resident pages.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <numeric>
#include <thread>

#include "engine/residency/device_pool.h"
#include "engine/residency/resident_pages.h"
#include "engine/residency/transfer_streams.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// Copies a page that want() returned, as the retrievers do.
void copy_page(const ResidentPages& resident, const KvView& host, const RetrievalPages& pages,
               const PageCopy& copy) {
  const KvMove move = resident.move(copy, pages[copy.page]);
  const Status s = kv_gather({host, resident.slots(), &move, 1, move.rows});
  EXPECT_TRUE(s.ok()) << s.to_string();
}

TEST(DevicePoolTest, CountsEveryByteAndStopsAtItsLimit) {
  DevicePool pool(1000);
  {
    auto a = pool.allocate(600);
    ASSERT_TRUE(a.ok());
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a->data()) % 64, 0u);
    for (std::int64_t i = 0; i < a->size(); ++i) EXPECT_EQ(a->data()[i], std::byte{0});
    const auto b = pool.allocate(401);
    EXPECT_EQ(b.status().code(), Code::kResourceExhausted);
    EXPECT_NE(b.status().message().find("600 of 1000"), std::string::npos) << b.status().message();
    PoolMemory moved = std::move(*a);
    EXPECT_EQ(pool.bytes_in_use(), 600);
    EXPECT_TRUE(pool.allocate(400).ok());
  }
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(pool.peak_bytes(), 1000);
}

TEST(TransferStreamsTest, RunsCopiesInOrderAndWaitsForThem) {
  std::vector<int> ran;
  TransferStreams::Ticket last;
  TransferStreams lane;
  for (int i = 0; i < 100; ++i) {
    last = lane.submit([&ran, i] {
      ran.push_back(i);
      return Status();
    });
  }
  (void)lane.wait(last);
  ASSERT_EQ(ran.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[static_cast<std::size_t>(i)], i);
  EXPECT_FALSE(lane.wait(last).waited) << "it is done";
}

TEST(TransferStreamsTest, WhatIsLeftRunsBeforeTheLaneGoes) {
  std::atomic<int> ran{0};
  {
    TransferStreams lane;
    for (int i = 0; i < 20; ++i) {
      lane.submit([&ran] {
        ++ran;
        return Status();
      });
    }
  }
  EXPECT_EQ(ran, 20);
}

TEST(TransferStreamsTest, StreamsDoNotWaitForEachOther) {
  std::atomic<bool> open{false};
  TransferStreams lane({}, 2);
  const auto held = lane.submit(
      [&open] {
        open.wait(false);
        return Status();
      },
      0);
  std::vector<int> ran;
  TransferStreams::Ticket last;
  for (int i = 0; i < 20; ++i) {
    last = lane.submit(
        [&ran, i] {
          ran.push_back(i);
          return Status();
        },
        1);
  }
  EXPECT_TRUE(lane.wait(last).status.ok());
  EXPECT_EQ(ran.size(), 20u) << "while the other stream stands";
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  open = true;
  open.notify_all();
  EXPECT_TRUE(lane.wait(held).status.ok());
}

TEST(TransferStreamsTest, ACopyThatFailsSaysSoToItsOwner) {
  int number = 0;
  TransferStreams lane(
      [&number] { return ++number == 2 ? Status::io("the bus is down") : Status(); });
  std::vector<TransferStreams::Ticket> tickets;
  for (int i = 0; i < 3; ++i) tickets.push_back(lane.submit([] { return Status(); }));
  EXPECT_TRUE(lane.wait(tickets[0]).status.ok());
  EXPECT_EQ(lane.wait(tickets[1]).status.code(), Code::kIo);
  EXPECT_TRUE(lane.wait(tickets[2]).status.ok()) << "others go on";
}

/// A host page that begins anywhere, in either layout, arrives as rows copied one by one would.
TEST(ResidentPagesCopy, PagesCutAnywhereArriveWhole) {
  for (const TestLayout layout : {TestLayout::kTokenMajor, TestLayout::kHeadMajor}) {
    PagedKv host(100, 2, 8, DType::kF16, layout, 3);
    for (const std::int64_t first : {0, 5, 16}) {
      DevicePool pool(0);
      RetrievalPages pages(32, {{first, 100}});
      pages.extend(host.positions());
      ResidentPages resident = std::move(
          *ResidentPages::create(pool, 2, 8, DType::kF16, 32, pages.size()));
      std::vector<std::int32_t> all(static_cast<std::size_t>(pages.size()));
      std::iota(all.begin(), all.end(), 0);
      std::vector<PageCopy> copies;
      for (std::int32_t head = 0; head < 2; ++head)
        resident.want(head, all, pages, host.positions(), copies);
      for (const PageCopy& c : copies) copy_page(resident, host.view(true), pages, c);
      for (std::int32_t head = 0; head < 2; ++head) {
        const KvView view = resident.view(head);
        int seen = 0;
        for (std::int64_t r = 0; r < view.num_rows; ++r) {
          if (view.positions[r] == std::numeric_limits<std::int32_t>::max()) continue;
          ++seen;
          for (int kv = 0; kv < 2; ++kv) {
            const auto* bytes = static_cast<const std::byte*>(view.pages[r / kPageTokens]) +
                                kv * view.kv_stride + r % kPageTokens * view.token_stride;
            ASSERT_EQ(std::memcmp(bytes, host.row(view.positions[r], kv, head), 16), 0)
                << "from " << first << " position " << view.positions[r];
          }
        }
        EXPECT_EQ(seen, 100);
      }
    }
  }
}

class ResidentPagesTest : public ::testing::Test {
 protected:
  ResidentPagesTest() : host_(100, 2, 8, DType::kF16, TestLayout::kTokenMajor, 3), pages_(16, {}) {
    pages_.extend(host_.positions());
  }
  ResidentPages make(std::int32_t slots) {
    return std::move(*ResidentPages::create(pool_, 2, 8, DType::kF16, 16, slots));
  }
  void bring(ResidentPages& resident, std::int32_t head, std::vector<std::int32_t> wanted,
             std::size_t copies_expected) {
    std::vector<PageCopy> copies;
    resident.want(head, wanted, pages_, host_.positions(), copies);
    EXPECT_EQ(copies.size(), copies_expected);
    for (const PageCopy& c : copies) copy_page(resident, host_.view(true), pages_, c);
    for (std::int32_t page = 0; page < pages_.size(); ++page) {
      EXPECT_EQ(resident.resident(head, page),
                std::find(wanted.begin(), wanted.end(), page) != wanted.end())
          << page;
    }
    expect_holds(resident, head, wanted);
  }
  /// Expects that exactly the rows of these pages are visible, each with its bits.
  void expect_holds(const ResidentPages& resident, std::int32_t head,
                    const std::vector<std::int32_t>& wanted) {
    const KvView view = resident.view(head);
    std::vector<int> seen(100, 0);
    for (std::int64_t r = 0; r < view.num_rows; ++r) {
      const std::int32_t position = view.positions[r];
      if (position == std::numeric_limits<std::int32_t>::max()) continue;
      ++seen[static_cast<std::size_t>(position)];
      for (int kv = 0; kv < 2; ++kv) {
        const auto* bytes = static_cast<const std::byte*>(view.pages[r / kPageTokens]) +
                            kv * view.kv_stride + r % kPageTokens * view.token_stride;
        EXPECT_EQ(std::memcmp(bytes, host_.row(position, kv, head), 16), 0)
            << "position " << position;
      }
    }
    // The view of all heads' slots must list the same rows in order.
    std::vector<std::int32_t> listed;
    resident.append_rows(head, listed);
    const KvView all = resident.listed();
    std::size_t next = 0;
    for (std::int64_t r = 0; r < view.num_rows; ++r) {
      if (view.positions[r] == std::numeric_limits<std::int32_t>::max()) continue;
      ASSERT_LT(next, listed.size());
      const std::int64_t row = listed[next++];
      const auto* there = static_cast<const std::byte*>(all.pages[row / kPageTokens]) +
                          head * all.head_stride + row % kPageTokens * all.token_stride;
      const auto* here = static_cast<const std::byte*>(view.pages[r / kPageTokens]) +
                         r % kPageTokens * view.token_stride;
      EXPECT_EQ(there, here);
    }
    EXPECT_EQ(next, listed.size());
    for (std::int32_t page = 0; page < pages_.size(); ++page) {
      const int expected = std::find(wanted.begin(), wanted.end(), page) != wanted.end() ? 1 : 0;
      for (std::int64_t r = pages_[page].begin; r < pages_[page].end; ++r)
        EXPECT_EQ(seen[static_cast<std::size_t>(r)], expected) << "row " << r;
    }
  }

  PagedKv host_;
  RetrievalPages pages_;
  DevicePool pool_{0};
};

TEST_F(ResidentPagesTest, OnlyWhatIsMissingIsCopied) {
  ResidentPages resident = make(4);
  bring(resident, 0, {0, 2, 6}, 3);
  bring(resident, 0, {0, 2, 6}, 0);
  bring(resident, 0, {1, 2, 5, 6}, 2);
  bring(resident, 1, {3}, 1);  // each head has its own slots
  expect_holds(resident, 0, {1, 2, 5, 6});
  bring(resident, 0, {}, 0);
  bring(resident, 0, {6, 0, 3, 4}, 4);
}

TEST_F(ResidentPagesTest, TheLastPageGrowsWhereItIs) {
  ResidentPages resident = make(2);
  RetrievalPages growing(16, {});
  growing.extend(std::span(host_.positions()).first(98));
  std::vector<PageCopy> copies;
  const std::vector<std::int32_t> wanted = {0, 6};
  resident.want(0, wanted, growing, host_.positions(), copies);
  for (const PageCopy& c : copies) copy_page(resident, host_.view(98, true), growing, c);
  for (std::int64_t rows : {99, 100}) {
    growing.extend(std::span(host_.positions()).first(static_cast<std::size_t>(rows)));
    std::vector<KvMove> moves;
    resident.append(growing, 6, host_.positions()[static_cast<std::size_t>(rows - 1)], moves);
    ASSERT_EQ(moves.size(), 1u) << "one head has it";
    EXPECT_EQ(moves[0], (KvMove{0, static_cast<std::int32_t>(rows - 1),
                                16 + static_cast<std::int32_t>(rows - 1 - 96), 1}));
    ASSERT_TRUE(kv_gather({host_.view(rows, true), resident.slots(), moves.data(), 1, 1}).ok());
  }
  expect_holds(resident, 0, wanted);
}

TEST_F(ResidentPagesTest, NoRoomIsSaidOnce) {
  DevicePool small(100);
  EXPECT_EQ(ResidentPages::create(small, 2, 8, DType::kF16, 16, 4).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(small.bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
