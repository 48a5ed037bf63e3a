// Single writes to tables of pages and positions, which plain stores define.
#include "kernels/cuda/rows/kv_tables.cuh"

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

TEST(CudaParity, WritesOfTablesReachTheirPlacesAndNoOthers) {
  for (const auto& [num_pages, num_positions] :
       {std::pair<std::int64_t, std::int64_t>{0, 0}, {1, 0}, {0, 3}, {5, 200}, {300, 129}}) {
    TestDevice device;
    auto launcher = device.launcher();
    constexpr std::int64_t kRoom = 1000;
    std::vector<std::int64_t> pages(kRoom, 7), expected_pages = pages;
    std::vector<std::int32_t> positions(kRoom, -1), expected_positions = positions;
    std::int64_t* const page_table = device.output(pages, "pages");
    std::int32_t* const position_table = device.output(positions, "positions");
    std::vector<WriteTablesArgs::Page> new_pages;
    for (std::int64_t i = 0; i < num_pages; ++i) {
      const std::int64_t at = i * 3 % kRoom;
      new_pages.push_back({reinterpret_cast<const void**>(page_table + at),
                           reinterpret_cast<const void*>(1000 + i)});
      expected_pages[static_cast<std::size_t>(at)] = 1000 + i;
    }
    std::vector<WriteTablesArgs::Position> new_positions;
    for (std::int64_t i = 0; i < num_positions; ++i) {
      const std::int64_t at = (i * 7 + 2) % kRoom;
      new_positions.push_back({position_table + at, 5 * i});
      expected_positions[static_cast<std::size_t>(at)] = static_cast<std::int32_t>(5 * i);
    }
    ASSERT_OK(launch_write_tables(
        launcher, {device.upload(new_pages, "new pages"),
                   device.upload(new_positions, "new positions"), num_pages, num_positions}));
    EXPECT_EQ(device.download(page_table, kRoom), expected_pages);
    EXPECT_EQ(device.download(position_table, kRoom), expected_positions);
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_write_tables(launcher, {nullptr, nullptr, -1, 0}).field(), "num_pages");
}

}  // namespace
}  // namespace quire::cuda
