/// KV that is cut by head over several emulated devices: what they write, copy and attend to has
/// the bits of one device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/index.h"
#include "engine/cache/working_cache.h"
#include "engine/device/device_compute.h"
#include "engine/device/team/team_compute.h"
#include "tests/support/simt/emulated_team.h"

namespace quire {
namespace {

constexpr std::int32_t kDim = 16, kGroup = 2;

struct Shape {
  std::int32_t heads;
  DType dtype;
  DType stored() const { return dtype == DType::kF8 ? DType::kF16 : dtype; }
  std::string name() const {
    return std::to_string(heads) + " heads of " + std::string(dtype_name(dtype));
  }
};
/// One of the ranks has fewer heads than the others, or none.
const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {5, DType::kF16}, {2, DType::kBF16}, {4, DType::kF32}, {3, DType::kF8}};
  return all;
}

RopeTable small_table() {
  RopeConfig config;
  config.head_dim = config.rotary_dim = kDim;
  return std::move(*RopeTable::build(config, 4096));
}

/// One device, or several that have KV by head, with a cache of one layer.
class Side {
 public:
  Side(const Shape& shape, std::int64_t devices)
      : shape_(shape),
        team_(simt::make_emulated_team(devices)),
        compute_(make_team_compute(team_.team, "cuda", nullptr, {.split_kv = true})),
        table_(small_table()),
        registered_(*compute_->register_rope(table_)),
        format_{shape.heads, kDim, shape.dtype},
        pool_(format_, 0, *compute_->page_memory(shape.heads, format_.page_bytes() / shape.heads)),
        cache_(pool_, 1) {}

  Compute& compute() { return *compute_; }
  WorkingCache& cache() { return cache_; }
  const simt::EmulatedTeam& team() const { return team_; }
  std::int64_t rows() const { return cache_.num_rows(0); }

  std::vector<std::int32_t> add(std::int64_t n) {
    std::vector<std::int32_t> rows(to_size(n));
    std::iota(rows.begin(), rows.end(), static_cast<std::int32_t>(cache_.num_rows(0)));
    EXPECT_TRUE(cache_.add_rows(0, rows).ok());
    return rows;
  }
  /// Adds rows, every second of a pass's rows, as a forward pass writes them.
  void write(std::int64_t n, std::uint32_t seed) {
    const std::vector<std::int32_t> to = add(n);
    std::vector<std::int32_t> from;
    for (std::int32_t i = 0; i < n; ++i) from.push_back(2 * i + 1);
    const std::int64_t kv_dim = std::int64_t{shape_.heads} * kDim, ld = 2 * kv_dim + 8;
    const float* kv = put((2 * n + 1) * ld, seed);
    const auto dst = cache_.writable(0, to);
    ASSERT_TRUE(dst.ok());
    const Status written = compute_->kv().write_rows(table_, {.k = kv,
                                                              .v = kv + kv_dim,
                                                              .ld = ld,
                                                              .from = from,
                                                              .positions = to,
                                                              .dst_rows = to,
                                                              .raw_dtype = shape_.stored(),
                                                              .dst = *dst});
    EXPECT_TRUE(written.ok()) << written.to_string();
  }
  /// Adds rows of two blocks, as a store has them.
  void place(std::int64_t n, std::uint32_t seed, bool ahead) {
    const std::vector<std::int32_t> to = add(2 * n);
    const DType dtype = shape_.stored();
    const auto size = static_cast<std::int64_t>(dtype_bytes(dtype)), row = kDim * size;
    std::vector<std::vector<std::byte>> blocks;
    std::vector<RawKvView> raw;
    std::vector<StoredRows> stored;
    for (std::uint32_t block = 0; block < 2; ++block) {
      const std::vector<float> values = random(shape_.heads * 2 * n * kDim, seed + block);
      blocks.emplace_back(to_size(count_of(values) * size));
      for (std::size_t i = 0; i < values.size(); ++i)
        store_f32(blocks.back().data(), dtype, static_cast<std::int64_t>(i), values[i]);
      raw.push_back({.data = blocks.back().data(),
                     .num_rows = n,
                     .dtype = dtype,
                     .head_stride = 2 * n * row,
                     .kv_stride = n * row,
                     .row_stride = row});
      const auto rows = std::span(to).subspan(to_size(block * n), to_size(n));
      stored.push_back({raw.back(), rows, rows});
    }
    if (ahead) {
      EXPECT_TRUE(compute_->kv().pack_ahead(raw, shape_.heads, kDim).ok());
    }
    const auto dst = cache_.writable(0, to);
    ASSERT_TRUE(dst.ok());
    const Status placed = compute_->kv().place(table_, *dst, stored);
    EXPECT_TRUE(placed.ok()) << placed.to_string();
    compute_->kv().end_packing();
  }
  std::vector<void*> pages() const {
    std::vector<void*> out;
    const KvView kv = cache_.view(0);
    for (std::int64_t page = 0; page * kPageTokens < kv.num_rows; ++page)
      out.push_back(const_cast<void*>(kv.pages[page]));
    return out;
  }
  /// Returns the rows of every head, K and V, as bytes. What no row of a page wrote is zero.
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> all(to_size(count_of(pages()) * format_.page_bytes()));
    const Status status = pool_.read_pages(pages(), all.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    const auto row = kDim * static_cast<std::int64_t>(dtype_bytes(shape_.dtype));
    for (std::int64_t at = 0; at * row < count_of(all); ++at) {
      const std::int64_t page = at * row / format_.page_bytes();
      if (page * kPageTokens + at % kPageTokens >= rows())
        std::memset(all.data() + at * row, 0, to_size(row));
    }
    return all;
  }
  void overwrite(const std::vector<std::byte>& bytes) {
    const Status status = pool_.write_pages(bytes.data(), pages());
    EXPECT_TRUE(status.ok()) << status.to_string();
  }

  static std::vector<float> random(std::int64_t n, std::uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> value;
    std::vector<float> out(to_size(n));
    for (float& x : out) x = value(rng);
    return out;
  }
  float* put(const std::vector<float>& values, MemoryPlace place = MemoryPlace::kDevice) {
    buffers_.emplace_back(place);
    EXPECT_TRUE(buffers_.back().reserve(compute_->memory(), count_of(values)).ok());
    EXPECT_TRUE(compute_->memory()
                    ->write(buffers_.back().data(), values.data(),
                            count_of(values) * static_cast<std::int64_t>(sizeof(float)))
                    .ok());
    return buffers_.back().data();
  }
  float* put(std::int64_t n, std::uint32_t seed) { return put(random(n, seed)); }
  std::vector<float> get(const float* from, std::int64_t n) {
    std::vector<float> out(to_size(n));
    const Status status = compute_->read(from, n, out.data());
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  }

  std::int32_t num_heads() const { return shape_.heads * kGroup; }
  std::int64_t width() const { return std::int64_t{num_heads()} * kDim; }
  /// Attends with the last `rows` positions; outputs of dtype `to` come back as floats.
  std::vector<float> attend(std::int64_t n, DType to) {
    const std::int64_t ldq = width() + 8, ldo = width() + 16;
    std::vector<std::int32_t> at(to_size(n));
    std::iota(at.begin(), at.end(), static_cast<std::int32_t>(rows() - n));
    float* out = put(std::vector<float>(to_size(n * ldo)));
    float* lse = put(std::vector<float>(to_size(n * num_heads())));
    const Status status = compute_->attention().attend({.q = put(n * ldq, 5),
                                                        .query_positions = at.data(),
                                                        .rows = n,
                                                        .ldq = ldq,
                                                        .num_heads = num_heads(),
                                                        .scale = 0.25f,
                                                        .kv = cache_.view(0),
                                                        .out = out,
                                                        .ldo = ldo,
                                                        .lse = lse},
                                                       to);
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<float> all = get(out, n * ldo);
    const std::vector<float> sums = get(lse, n * num_heads());
    all.insert(all.end(), sums.begin(), sums.end());
    return all;
  }

 private:
  const Shape shape_;
  const simt::EmulatedTeam team_;
  const std::shared_ptr<Compute> compute_;
  const RopeTable table_;
  const std::shared_ptr<const void> registered_;
  const PageFormat format_;
  PagePool pool_;
  WorkingCache cache_;
  std::vector<ComputeBuffer<float>> buffers_;
};

/// Calls `check` with one device and with 2 and 3 that have KV by head.
template <class Check>
void on_each(Check check) {
  for (const Shape& shape : shapes()) {
    for (const std::int64_t devices : {2, 3}) {
      SCOPED_TRACE(shape.name() + " on " + std::to_string(devices));
      Side one(shape, 1), several(shape, devices);
      check(one, several);
    }
  }
}

TEST(DeviceSplitKv, RowsAreWrittenAndPlacedAsOnOneDevice) {
  on_each([](Side& one, Side& several) {
    for (Side* side : {&one, &several}) {
      side->write(21, 1);
      side->place(19, 2, false);
      side->write(1, 3);
      side->place(5, 4, true);
    }
    EXPECT_EQ(several.bytes(), one.bytes());
    // Nobody has memory for all heads.
    for (const auto& device : several.team().devices)
      EXPECT_LT(device->bytes_in_use(), one.team().devices[0]->bytes_in_use());
  });
}

TEST(DeviceSplitKv, PagesComeBackFromTheHost) {
  on_each([](Side& one, Side& several) {
    for (Side* side : {&one, &several}) side->write(70, 1);
    const std::vector<std::byte> bytes = one.bytes();
    several.write(35, 9);
    one.write(35, 8);
    std::vector<std::byte> more = one.bytes();
    several.overwrite(more);
    EXPECT_EQ(several.bytes(), more);
    for (Side* side : {&one, &several}) {
      ASSERT_TRUE(side->cache().move_out().ok());
      ASSERT_TRUE(side->cache().move_in().ok());
    }
    EXPECT_EQ(several.bytes(), more);
    EXPECT_EQ(several.attend(3, DType::kF32), one.attend(3, DType::kF32));
  });
}

TEST(DeviceSplitKv, KeptRowsMoveTogetherOnEveryDevice) {
  on_each([](Side& one, Side& several) {
    for (Side* side : {&one, &several}) {
      side->write(100, 1);
      (void)side->attend(1, DType::kF32);  // tables know the pages that will go
      std::vector<std::vector<std::int32_t>> kept(to_size(side->num_heads() / kGroup));
      for (std::size_t head = 0; head < kept.size(); ++head)
        for (std::int32_t row = static_cast<std::int32_t>(head); row < 100; row += 3)
          if (kept[head].size() < 30) kept[head].push_back(row);
      const Status status = side->cache().keep_rows(0, kept);
      ASSERT_TRUE(status.ok()) << status.to_string();
      side->write(18, 2);
    }
    EXPECT_EQ(several.bytes(), one.bytes());
    EXPECT_EQ(several.attend(2, DType::kF32), one.attend(2, DType::kF32));
  });
}

TEST(DeviceSplitKv, AttentionHasTheBitsOfOneDevice) {
  on_each([](Side& one, Side& several) {
    for (const std::int64_t more : {40, 1, 300}) {
      for (Side* side : {&one, &several}) side->write(more, static_cast<std::uint32_t>(more));
      for (const std::int64_t rows : {1, 3, 33})
        for (const DType to : {DType::kF32, DType::kBF16})
          EXPECT_EQ(several.attend(rows, to), one.attend(rows, to)) << rows;
    }
  });
}

TEST(DeviceSplitKv, DecodeStepsAttendToRowsAndListsAsOneDevice) {
  on_each([](Side& one, Side& several) {
    std::vector<std::vector<float>> results;
    for (Side* side : {&one, &several}) {
      side->write(290, 1);
      const std::int64_t width = side->width();
      std::vector<std::vector<std::int32_t>> rows(to_size(side->num_heads() / kGroup));
      std::vector<RowList> lists;
      for (std::size_t head = 0; head < rows.size(); ++head) {
        for (std::int32_t row = static_cast<std::int32_t>(head); row < 290; row += 7)
          rows[head].push_back(row);
        lists.push_back({rows[head].data(), count_of(rows[head])});
      }
      const KvView kv = side->cache().view(0);
      ASSERT_TRUE(side->compute().attention().refresh({&kv, 1}).ok());
      const std::vector<SequenceAttention> sequences = {
          {.kv = kv, .position = 289}, {.kv = kv, .lists = lists.data(), .position = 289}};
      float* out = side->put(std::vector<float>(to_size(2 * width)));
      const Status status = side->compute().attention().attend_each({.q = side->put(2 * width, 5),
                                                                     .query_positions = nullptr,
                                                                     .rows = 2,
                                                                     .ldq = width,
                                                                     .num_heads = side->num_heads(),
                                                                     .scale = 0.25f,
                                                                     .kv = kv,
                                                                     .out = out,
                                                                     .ldo = width,
                                                                     .lse = nullptr},
                                                                    sequences, DType::kF32);
      EXPECT_TRUE(status.ok()) << status.to_string();
      results.push_back(side->get(out, 2 * width));
      if (side == &one) continue;
      std::vector<SequenceAttention> in_memory = sequences;
      in_memory[0].lists_in_memory = lists.data();
      EXPECT_EQ(side->compute()
                    .attention()
                    .attend_each({.q = out,
                                  .query_positions = nullptr,
                                  .rows = 2,
                                  .ldq = width,
                                  .num_heads = side->num_heads(),
                                  .scale = 0.25f,
                                  .kv = kv,
                                  .out = out,
                                  .ldo = width,
                                  .lse = nullptr},
                                 in_memory, DType::kF32)
                    .code(),
                Code::kUnimplemented);
    }
    EXPECT_EQ(results[1], results[0]);
  });
}

TEST(DeviceSplitKv, ScoresMassesAndStatisticsHaveTheBitsOfOneDevice) {
  on_each([](Side& one, Side& several) {
    std::vector<std::vector<float>> results;
    for (Side* side : {&one, &several}) {
      constexpr std::int64_t kRows = 90, kQueries = 5;
      side->write(kRows, 1);
      const std::int64_t width = side->width(), heads = side->num_heads(),
                         kv_heads = heads / kGroup, ld_lse = heads + 3, ld_scores = kRows + 6;
      const KvView kv = side->cache().view(0);
      const float *q = side->put(kQueries * width, 2), *lse = side->put(kQueries * ld_lse, 3);
      const std::vector<std::int32_t> at = {85, 86, 87, 88, 89};
      std::vector<float> all;
      const auto take = [&](const float* from, std::int64_t n) {
        const std::vector<float> values = side->get(from, n);
        all.insert(all.end(), values.begin(), values.end());
      };
      // The host reads scores, which lie in pinned memory then, and two calls add to them.
      float* scores = side->put(std::vector<float>(to_size(kv_heads * ld_scores)),
                                MemoryPlace::kPinned);
      for (int call = 0; call < 2; ++call) {
        const Status scored = side->compute().attention().scores(
            {.q = q,
             .query_positions = at.data(),
             .lse = lse,
             .rows = kQueries,
             .ldq = width,
             .ld_lse = ld_lse,
             .num_heads = side->num_heads(),
             .scale = 0.25f,
             .kv = kv,
             .reduction = call == 0 ? ScoreReduction::kSum : ScoreReduction::kMax,
             .scores = scores,
             .ld_scores = ld_scores});
        EXPECT_TRUE(scored.ok()) << scored.to_string();
      }
      for (std::int64_t head = 0; head < kv_heads; ++head) take(scores + head * ld_scores, kRows);

      const std::vector<RowRange> ranges = {{0, 17}, {60, 90}, {5, 5}};
      float* mass = side->put(std::vector<float>(to_size(kQueries * heads * 3)));
      const Status weighed = side->compute().attention().mass({.q = q,
                                                               .query_positions = at.data(),
                                                               .lse = lse,
                                                               .rows = kQueries,
                                                               .ldq = width,
                                                               .ld_lse = ld_lse,
                                                               .num_heads = side->num_heads(),
                                                               .scale = 0.25f,
                                                               .kv = kv,
                                                               .ranges = ranges.data(),
                                                               .num_ranges = 3,
                                                               .mass = mass});
      EXPECT_TRUE(weighed.ok()) << weighed.to_string();
      take(mass, kQueries * heads * 3);

      // Three sums of f64 for each column, [3 * kRows], as floats of the same bits.
      float* sums = side->put(std::vector<float>(to_size(3 * kRows * 2)));
      std::vector<float> late(to_size(kRows), 0), logs(to_size(kRows), 0);
      for (std::int64_t i = 0; i < kRows; ++i) {
        const std::int32_t distance = 7;
        std::memcpy(&late[to_size(i)], &distance, sizeof distance);
        if (i > 0) logs[to_size(i)] = std::log(static_cast<float>(i));
      }
      auto* sum = reinterpret_cast<double*>(sums);
      const Status counted = side->compute().attention().statistics(
          {.q = q,
           .lse = lse,
           .rows = kQueries,
           .ldq = width,
           .ld_lse = ld_lse,
           .first_row = kRows - kQueries,
           .row_step = 1,
           .num_heads = side->num_heads(),
           .scale = 0.25f,
           .kv = kv,
           .first_column = 0,
           .num_columns = kRows,
           .late_distance = reinterpret_cast<const std::int32_t*>(side->put(late)),
           .log_distance = side->put(logs),
           .sum_log = sum,
           .sum_x_log = sum + kRows,
           .sum_late = sum + 2 * kRows});
      EXPECT_TRUE(counted.ok()) << counted.to_string();
      take(sums, 3 * kRows * 2);
      results.push_back(std::move(all));
    }
    ASSERT_EQ(results[1].size(), results[0].size());
    EXPECT_EQ(std::memcmp(results[1].data(), results[0].data(), results[0].size() * sizeof(float)),
              0);
  });
}

/// A draft has pages of its own shape, on the leader.
TEST(DeviceSplitKv, CachesOfOtherMemoryStayOnTheLeader) {
  const Shape shape{4, DType::kF16};
  Side several(shape, 2);
  several.write(20, 1);
  const std::int64_t there = several.team().devices[1]->runs(cuda::OpCode::kPlaceRows);
  PagePool pool({4, kDim, DType::kF16}, 0, several.compute().memory());
  WorkingCache cache(pool, 1);
  std::vector<std::int32_t> rows(20);
  std::iota(rows.begin(), rows.end(), 0);
  ASSERT_TRUE(cache.add_rows(0, rows).ok());
  std::vector<std::byte> bytes(to_size(2 * pool.format().page_bytes())), back(bytes.size());
  std::vector<void*> pages;
  for (int page = 0; page < 2; ++page)
    pages.push_back(const_cast<void*>(cache.view(0).pages[page]));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 61);
  ASSERT_TRUE(pool.write_pages(bytes.data(), pages).ok());
  ASSERT_TRUE(pool.read_pages(pages, back.data()).ok());
  EXPECT_EQ(back, bytes);
  EXPECT_EQ(several.team().devices[1]->runs(cuda::OpCode::kPlaceRows), there);
  EXPECT_FALSE(several.compute().page_memory(2, 1024).ok()) << "one shape alone";
}

TEST(DeviceSplitKv, MemoryThatRunsOutOnAnyDeviceLeavesNothingBehind) {
  for (std::size_t rank = 0; rank < 2; ++rank) {
    Side several({4, DType::kF16}, 2);
    std::int64_t before[2];
    for (const std::size_t r : {0, 1}) before[r] = several.team().devices[r]->bytes_in_use();
    several.team().devices[rank]->fail_allocation(0);
    const std::vector<std::int32_t> positions = {0};
    EXPECT_EQ(several.cache().add_rows(0, positions).code(), Code::kResourceExhausted);
    several.team().devices[rank]->fail_allocation(-1);
    for (const std::size_t r : {0, 1})
      EXPECT_EQ(several.team().devices[r]->bytes_in_use(), before[r]);
    several.write(3, 1);
    EXPECT_EQ(several.rows(), 3);
  }
}

}  // namespace
}  // namespace quire
