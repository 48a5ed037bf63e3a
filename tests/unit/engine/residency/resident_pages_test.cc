// Pages on the device hold what was copied, from either layout of the host.
#include "engine/residency/resident_pages.h"

#include <gtest/gtest.h>

#include <cstring>

#include "engine/residency/device_pool.h"
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

constexpr std::int32_t kHeads = 3, kDim = 24, kRows = 203;

TEST(ResidentPages, HoldTheSameBytesFromEitherLayoutOfTheHost) {
  for (const std::int32_t page_tokens : {16, 32}) {
    for (const TestLayout layout : {TestLayout::kHeadMajor, TestLayout::kTokenMajor}) {
      PagedKv host(kRows, kHeads, kDim, DType::kBF16, layout, 5);
      RetrievalPages pages(page_tokens, {{3, 70}, {73, 100}});
      pages.extend(host.positions());
      DevicePool device(0);
      auto resident = ResidentPages::create(device, kHeads, kDim, DType::kBF16, page_tokens, 5);
      ASSERT_TRUE(resident.ok());
      for (std::int32_t m = 0; m < kHeads; ++m) {
        const std::vector<std::int32_t> wanted = {0, 1 + m, 4, pages.size() - 1};
        std::vector<PageCopy> copies;
        resident->want(m, wanted, pages, host.positions(), copies);
        ASSERT_EQ(copies.size(), wanted.size());
        for (const PageCopy& copy : copies) {
          copy_page(*resident, host.view(true), pages, copy);
          EXPECT_EQ(resident->copy_bytes(pages[copy.page]),
                    (pages[copy.page].end - pages[copy.page].begin) * 2 * kDim * 2);
        }
        const KvView view = resident->view(m);
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          const RowRange& rows = pages[wanted[i]];
          for (std::int64_t row = rows.begin; row < rows.end; ++row) {
            const std::int64_t at = static_cast<std::int64_t>(i) * page_tokens + row - rows.begin;
            EXPECT_EQ(view.positions[at], host.positions()[static_cast<std::size_t>(row)]);
            for (int kv = 0; kv < 2; ++kv) {
              const auto* held = static_cast<const std::byte*>(view.pages[at / kPageTokens]) +
                                 kv * view.kv_stride + at % kPageTokens * view.token_stride;
              EXPECT_EQ(std::memcmp(held, host.row(row, kv, m), kDim * 2), 0)
                  << "page " << wanted[i] << " row " << row;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire
