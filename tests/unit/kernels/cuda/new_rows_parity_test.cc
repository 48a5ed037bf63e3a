// Queries that are rotated and new KV that is written in one launch: what the reference, the CPU
// and CUDA (emulated) compute in three, and the same bits as the three kernels.
#include "kernels/cuda/rows/kv.cuh"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Rotary {
  std::int32_t head_dim, rotary_dim;
  bool interleaved;
};
const Rotary kRotaries[] = {
    {8, 8, false}, {64, 64, false}, {80, 32, false}, {96, 96, true}, {24, 16, true}};
constexpr std::int64_t kPositions = 300, kCacheRows = 40, kHeads = 3;
constexpr std::int32_t kKvHeads = 2;

RopeTable table_of(const Rotary& r) {
  RopeConfig c;
  c.head_dim = r.head_dim;
  c.rotary_dim = r.rotary_dim;
  c.interleaved = r.interleaved;
  auto table = RopeTable::build(c, kPositions);
  EXPECT_TRUE(table.ok());
  return std::move(table).value();
}

/// Queries, and new rows of which those of `from` are written.
struct Rows {
  std::vector<std::int32_t> query_positions, from, positions, dst_rows;
};
const Rows kRows[] = {
    {.query_positions = {0, 299, 17, 17, 1},
     .from = {0, 1, 2, 3, 4},
     .positions = {0, 299, 17, 17, 1},
     .dst_rows = {39, 0, 16, 15, 3}},
    {.query_positions = {7, 8}, .from = {1, 4, 6}, .positions = {9, 0, 298}, .dst_rows = {1, 2, 0}},
    {.query_positions = {3, 2, 1, 0}, .from = {2}, .positions = {55}, .dst_rows = {21}},
    {.query_positions = {5}, .from = {}, .positions = {}, .dst_rows = {}},
    {.query_positions = {}, .from = {3, 5}, .positions = {250, 4}, .dst_rows = {12, 30}},
    {.query_positions = {}, .from = {}, .positions = {}, .dst_rows = {}}};
constexpr std::int64_t kNewRows = 7;

/// Q, K and V as one stacked projection has them, and where they go to.
class Case {
 public:
  Case(const Rotary& r, const Rows& rows, DType raw, DType to, TestLayout layout)
      : rotary_(r), rows_(rows), raw_(raw), to_(to), layout_(layout), table_(table_of(r)) {}

  std::int64_t q_dim() const { return kHeads * rotary_.head_dim; }
  std::int64_t kv_dim() const { return std::int64_t{kKvHeads} * rotary_.head_dim; }
  std::int64_t ld() const { return q_dim() + 2 * kv_dim() + 3; }
  std::int64_t num_queries() const {
    return static_cast<std::int64_t>(rows_.query_positions.size());
  }
  std::int64_t num_rows() const { return static_cast<std::int64_t>(rows_.from.size()); }
  std::vector<float> projected() const { return random_floats(kNewRows * ld(), 7); }
  PagedKv cache() const { return {kCacheRows, kKvHeads, rotary_.head_dim, to_, layout_, 9}; }
  const RopeTable& table() const { return table_; }

  RopeRotateArgs queries(const float* x, float* out, const std::int32_t* positions) const {
    return {x, out, positions, num_queries(), kHeads, ld(), q_dim()};
  }
  KvPackArgs pack(const float* k, void* out) const {
    return {k, k + kv_dim(), num_rows(), ld(), ld(), kKvHeads, rotary_.head_dim, raw_, out};
  }
  KvPlaceArgs place(const void* packed, const MutableKvView& dst, const std::int32_t* positions,
                    const std::int32_t* dst_rows) const {
    const std::int64_t row = rotary_.head_dim * static_cast<std::int64_t>(dtype_bytes(raw_));
    return {{packed, num_rows(), raw_, 2 * num_rows() * row, num_rows() * row, row},
            dst,
            positions,
            dst_rows,
            0};
  }
  /// The rows of the projection that are written, from the first key on.
  std::vector<float> gathered() const {
    const std::vector<float> x = projected();
    std::vector<float> out(static_cast<std::size_t>(std::max<std::int64_t>(1, num_rows()) * ld()));
    for (std::int64_t i = 0; i < num_rows(); ++i)
      std::copy_n(x.begin() + rows_.from[i] * ld() + q_dim(), 2 * kv_dim(), out.begin() + i * ld());
    return out;
  }
  std::size_t packed_bytes() const {
    return static_cast<std::size_t>(std::max<std::int64_t>(1, 2 * num_rows() * kv_dim())) *
           dtype_bytes(raw_);
  }

  /// The values of the cache in f32.
  std::vector<float> values(PagedKv& kv) const {
    std::vector<float> out;
    for (std::int64_t row = 0; row < kCacheRows; ++row) {
      for (int i = 0; i < 2 * kKvHeads; ++i) {
        for (std::int32_t c = 0; c < rotary_.head_dim; ++c)
          out.push_back(load_f32(kv.row(row, i / kKvHeads, i % kKvHeads), to_, c));
      }
    }
    return out;
  }

  void check() const;

 private:
  Rotary rotary_;
  Rows rows_;
  DType raw_, to_;
  TestLayout layout_;
  RopeTable table_;
};

void Case::check() const {
  const std::vector<float> x = projected(), kv = gathered();
  const std::vector<float> none(
      static_cast<std::size_t>(std::max<std::int64_t>(1, num_queries()) * q_dim()));
  std::vector<float> expected(none), cpu(none);
  PagedKv expected_kv = cache(), cpu_kv = cache(), apart_kv = cache(), cuda_kv = cache();
  std::vector<std::byte> packed(packed_bytes());
  const auto *query_positions = rows_.query_positions.data(), *positions = rows_.positions.data(),
             *dst_rows = rows_.dst_rows.data();
  ASSERT_OK(rope_rotate_reference(table_, queries(x.data(), expected.data(), query_positions)));
  ASSERT_OK(kv_pack_reference(pack(kv.data(), packed.data())));
  ASSERT_OK(kv_place_reference(
      table_, place(packed.data(), expected_kv.mutable_view(), positions, dst_rows)));
  ASSERT_OK(rope_rotate(table_, queries(x.data(), cpu.data(), query_positions)));
  ASSERT_OK(kv_pack(pack(kv.data(), packed.data())));
  ASSERT_OK(kv_place(table_, place(packed.data(), cpu_kv.mutable_view(), positions, dst_rows)));

  TestDevice device;
  auto launcher = device.launcher();
  const DeviceRopeTable table = device.upload(table_);
  query_positions = device.upload(rows_.query_positions, "query_positions");
  positions = device.upload(rows_.positions, "positions");
  dst_rows = device.upload(rows_.dst_rows, "dst_rows");
  float *apart = device.output(none, "apart"), *out = device.output(none, "out");
  const float *there = device.upload(x, "x"), *gathered = device.upload(kv, "kv");
  std::byte* packed_there = device.output(packed, "packed");
  const MutableKvView to_apart = device.attach(apart_kv.mutable_view()),
                      to = device.attach(cuda_kv.mutable_view());
  ASSERT_OK(launch_rope_rotate(launcher, table, queries(there, apart, query_positions)));
  ASSERT_OK(launch_kv_pack(launcher, pack(gathered, packed_there)));
  ASSERT_OK(launch_kv_place(launcher, table, place(packed_there, to_apart, positions, dst_rows)));
  const bool first_ones = rows_.from.empty() || rows_.from.back() + 1 == num_rows();
  const NewRowsArgs args{.q = queries(there, out, query_positions),
                         .k = there + q_dim(),
                         .v = there + q_dim() + kv_dim(),
                         .ld = ld(),
                         .from = first_ones ? nullptr : device.upload(rows_.from, "from"),
                         .num_rows = num_rows(),
                         .positions = positions,
                         .dst_rows = dst_rows,
                         .raw_dtype = raw_,
                         .dst = to};
  ASSERT_OK(launch_write_new_rows(launcher, table, args));
  device.bring_back(to_apart, apart_kv.mutable_view());
  device.bring_back(to, cuda_kv.mutable_view());

  const auto n = static_cast<std::int64_t>(none.size());
  // A subnormal number of eight bits is rounded by half of 2^-9
  const double close = 2 * epsilon_of(to_), absolute = to_ == DType::kF8 ? 0x1p-9 : 2e-6;
  expect_close(cpu, expected, 1e-6, 1e-6, "queries, cpu");
  expect_close(device.download(out, n), expected, 1e-6, 1e-6, "queries, cuda");
  EXPECT_EQ(device.download(out, n), device.download(apart, n));
  expect_close(values(cpu_kv), values(expected_kv), absolute, close, "kv, cpu");
  expect_close(values(cuda_kv), values(expected_kv), absolute, close, "kv, cuda");
  EXPECT_EQ(values(cuda_kv), values(apart_kv));
}

TEST(CudaParity, NewRowsAreRotatedRoundedAndPlacedAsByThreeLaunches) {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  const TestLayout layouts[] = {TestLayout::kHeadPages, TestLayout::kGranules,
                                TestLayout::kTokenMajor};
  for (const Rotary& r : kRotaries) {
    for (const Rows& rows : kRows) {
      for (const DType raw : dtypes) {
        for (std::size_t to = 0; to < 3; ++to) Case(r, rows, raw, dtypes[to], layouts[to]).check();
        if (r.head_dim % 16 == 0) Case(r, rows, raw, DType::kF8, TestLayout::kHeadPages).check();
      }
    }
  }
}

TEST(CudaParity, NewRowsInPlaceAndWrongShapes) {
  const Case one({24, 16, true}, kRows[0], DType::kF16, DType::kF16, TestLayout::kHeadPages);
  const std::vector<float> x = one.projected();
  TestDevice device;
  auto launcher = device.launcher();
  const DeviceRopeTable table = device.upload(one.table());
  const std::int32_t* positions = device.upload(kRows[0].query_positions, "positions");
  const auto n = static_cast<std::int64_t>(x.size());
  float *apart = device.output(x, "apart"), *in_place = device.output(x, "in place");
  RopeRotateArgs queries = one.queries(apart, apart, positions);
  queries.ldo = queries.ldx;
  ASSERT_OK(launch_rope_rotate(launcher, table, queries));
  queries.x = queries.out = in_place;
  NewRowsArgs args{};
  args.q = queries;
  ASSERT_OK(launch_write_new_rows(launcher, table, args));
  EXPECT_EQ(device.download(in_place, n), device.download(apart, n));

  PagedKv kv = one.cache();
  args = {.q = queries,
          .k = in_place,
          .v = in_place,
          .ld = one.kv_dim() - 1,
          .from = nullptr,
          .num_rows = 1,
          .positions = positions,
          .dst_rows = positions,
          .raw_dtype = DType::kF16,
          .dst = device.attach(kv.mutable_view())};
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "ld");
  args.ld = one.ld();
  args.raw_dtype = DType::kI8;
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "raw_dtype");
  args.raw_dtype = DType::kF16;
  args.dst.dtype = DType::kF8;
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "head_dim");
  args.dst.dtype = DType::kF16;
  args.dst.head_dim = 32;
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "table");
  args.q.ldx = one.q_dim() - 1;
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "ldx");
  args.num_rows = -1;
  EXPECT_EQ(launch_write_new_rows(launcher, table, args).field(), "rows");
}

}  // namespace
}  // namespace quire::cuda
