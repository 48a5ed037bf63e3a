// Reference, CPU and CUDA (emulated) agree on rotating, placing and packing KV rows and on
// summaries of blocks.
#include "kernels/cuda/rows/kv.cuh"

#include <limits>

#include "kernels/rows/block_summary.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Rotary {
  std::int32_t head_dim, rotary_dim;
  bool interleaved;
};
const Rotary kRotaries[] = {
    {8, 8, false}, {64, 64, false}, {80, 32, false}, {96, 96, true}, {24, 16, true}};

RopeTable table_of(const Rotary& r, std::int64_t positions) {
  RopeConfig c;
  c.head_dim = r.head_dim;
  c.rotary_dim = r.rotary_dim;
  c.interleaved = r.interleaved;
  auto table = RopeTable::build(c, positions);
  EXPECT_TRUE(table.ok());
  return std::move(table).value();
}

RawKvView raw_view(const void* data, std::int64_t rows, std::int32_t dim, DType t) {
  const std::int64_t row = dim * static_cast<std::int64_t>(dtype_bytes(t));
  return {data, rows, t, 2 * rows * row, rows * row, row};
}

TEST(CudaParity, RopeRotate) {
  const std::int64_t heads = 3, rows = 5;
  const std::vector<std::int32_t> positions = {0, 299, 17, 17, 1};
  for (const Rotary& r : kRotaries) {
    const RopeTable table = table_of(r, 300);
    const std::int64_t ld = heads * r.head_dim + 3, n = rows * ld;
    const auto x = random_floats(n, 7);
    std::vector<float> expected(x), cpu(x);
    ASSERT_OK(rope_rotate_reference(
        table, {x.data(), expected.data(), positions.data(), rows, heads, ld, ld}));
    ASSERT_OK(rope_rotate(table, {x.data(), cpu.data(), positions.data(), rows, heads, ld, ld}));
    TestDevice device;
    auto launcher = device.launcher();
    const DeviceRopeTable on_device = device.upload(table);
    float *out = device.output(x, "out"), *in_place = device.output(x, "in place");
    const auto* p = device.upload(positions, "positions");
    ASSERT_OK(launch_rope_rotate(launcher, on_device,
                                 {device.upload(x, "x"), out, p, rows, heads, ld, ld}));
    ASSERT_OK(
        launch_rope_rotate(launcher, on_device, {in_place, in_place, p, rows, heads, ld, ld}));
    expect_close(cpu, expected, 1e-6, 1e-6, "cpu");
    expect_close(device.download(out, n), expected, 1e-6, 1e-6, "cuda");
    EXPECT_EQ(device.download(in_place, n), device.download(out, n));
    EXPECT_EQ(launch_rope_rotate(launcher, on_device,
                                 {in_place, in_place, p, rows, heads, heads * r.head_dim - 1, ld})
                  .field(),
              "ldx");
  }
}

TEST(CudaParity, KvPlace) {
  const std::int64_t rows = 21, cache_rows = 40;
  const std::int32_t heads = 2;
  std::vector<std::int32_t> positions, scattered;
  for (std::int32_t r = 0; r < rows; ++r) {
    positions.push_back(290 - 13 * r);
    scattered.push_back((r * 7 + 3) % 40);
  }
  for (const Rotary& r : kRotaries) {
    const RopeTable table = table_of(r, 300);
    for (const auto& [from, to] : {std::pair{DType::kF32, DType::kF16},
                                   {DType::kF16, DType::kBF16},
                                   {DType::kBF16, DType::kF32},
                                   {DType::kF16, DType::kF16},
                                   {DType::kF16, DType::kF8},
                                   {DType::kBF16, DType::kF8},
                                   {DType::kF32, DType::kF8}}) {
      if (to == DType::kF8 && r.head_dim % 16 != 0) continue;
      // A subnormal number of eight bits is rounded by half of 2^-9
      const double absolute = to == DType::kF8 ? 0x1p-9 : 2e-6;
      for (const bool scatter : {false, true}) {
        const auto raw = to_bytes(random_floats(heads * 2 * rows * r.head_dim, 8), from);
        const auto layout = scatter ? TestLayout::kHeadMajor : TestLayout::kTokenMajor;
        PagedKv expected(cache_rows, heads, r.head_dim, to, layout, 9),
            cpu(cache_rows, heads, r.head_dim, to, layout, 9),
            cuda(cache_rows, heads, r.head_dim, to, layout, 9);
        const auto args = [&](PagedKv& kv) {
          return KvPlaceArgs{raw_view(raw.data(), rows, r.head_dim, from), kv.mutable_view(),
                             positions.data(), scatter ? scattered.data() : nullptr, 11};
        };
        ASSERT_OK(kv_place_reference(table, args(expected)));
        ASSERT_OK(kv_place(table, args(cpu)));
        TestDevice device;
        auto launcher = device.launcher();
        KvPlaceArgs on_device = args(cuda);
        on_device.src.data = device.upload(raw, "raw");
        on_device.positions = device.upload(positions, "positions");
        on_device.dst = device.attach(cuda.mutable_view());
        if (scatter) on_device.dst_rows = device.upload(scattered, "dst_rows");
        ASSERT_OK(launch_kv_place(launcher, device.upload(table), on_device));
        device.bring_back(on_device.dst, cuda.mutable_view());
        for (std::int64_t row = 0; row < cache_rows; ++row) {
          for (int i = 0; i < 2 * heads * r.head_dim; ++i) {
            const int part = i / (heads * r.head_dim), head = i / r.head_dim % heads,
                      c = i % r.head_dim;
            const float e = load_f32(expected.row(row, part, head), to, c);
            ASSERT_NEAR(load_f32(cpu.row(row, part, head), to, c), e,
                        2 * epsilon_of(to) * std::abs(e) + absolute);
            ASSERT_NEAR(load_f32(cuda.row(row, part, head), to, c), e,
                        2 * epsilon_of(to) * std::abs(e) + absolute)
                << "row " << row << " channel " << c;
          }
        }
      }
    }
  }
}

/// Thread i takes codes 2 * i and 2 * i + 1.
struct EveryCodeKernel {
  static constexpr int kThreads = 128;
  std::uint32_t* wide;
  float* values;
  F8* back;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const int i = device.thread_idx();
    device.store(wide + i, device.widen(static_cast<std::uint16_t>(2 * i | (2 * i + 1) << 8)));
    for (int code = 2 * i; code < 2 * i + 2; ++code) {
      const float value = device.to_float(F8{static_cast<std::uint8_t>(code)});
      device.store(values + code, value);
      device.store(back + code, device.template from_float<F8>(value));
    }
  }
};

TEST(CudaParity, EveryCodeOfEightBitsIsWidenedAndComesBack) {
  TestDevice device;
  auto* wide = device.output(std::vector<std::uint32_t>(128), "wide");
  float* values = device.output(256, "values");
  auto* back = reinterpret_cast<F8*>(device.output(std::vector<std::uint8_t>(256), "back"));
  auto launcher = device.launcher();
  ASSERT_OK(launcher.launch({{1, 1, 1}, 128, 0}, EveryCodeKernel{wide, values, back}));
  const auto words = device.download(wide, 128);
  const auto floats = device.download(values, 256);
  const auto codes = device.download(back, 256);
  for (std::size_t code = 0; code < 256; ++code) {
    const float expected = e4m3_to_f32(static_cast<std::uint8_t>(code)),
                half = f16_to_f32(static_cast<std::uint16_t>(words[code / 2] >> 16 * (code % 2)));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(half) && std::isnan(floats[code])) << code;
      EXPECT_EQ(codes[code].bits & 0x7f, 0x7f) << code;
    } else {
      EXPECT_EQ(half, expected) << code;
      EXPECT_EQ(floats[code], expected) << code;
      EXPECT_EQ(codes[code].bits, code);
    }
  }
}

TEST(CudaParity, PlacedEightBitsSaturateAndTakeNoOddRows) {
  const Rotary rotary{16, 16, false};
  const RopeTable table = table_of(rotary, 10);
  // Values pass as they are; keys at position 0 are rotated by nothing
  std::vector<float> raw(32, 1.0f);
  raw[0] = 1e9f;
  raw[16] = -449;
  raw[17] = 17.01f;
  raw[18] = 17;
  raw[19] = std::numeric_limits<float>::quiet_NaN();
  raw[20] = -std::numeric_limits<float>::infinity();
  const std::vector<std::int32_t> position = {0};
  PagedKv kv(1, 1, 16, DType::kF8, TestLayout::kHeadPages, 9);
  KvPlaceArgs args{raw_view(raw.data(), 1, 16, DType::kF32), kv.mutable_view(), position.data(),
                   nullptr, 0};
  TestDevice device;
  auto launcher = device.launcher();
  const DeviceRopeTable on_device = device.upload(table);
  args.src.data = device.upload(raw, "raw");
  args.positions = device.upload(position, "positions");
  args.dst = device.attach(kv.mutable_view());
  ASSERT_OK(launch_kv_place(launcher, on_device, args));
  device.bring_back(args.dst, kv.mutable_view());
  EXPECT_EQ(load_f32(kv.row(0, 0, 0), DType::kF8, 0), 448);
  EXPECT_EQ(load_f32(kv.row(0, 1, 0), DType::kF8, 0), -448);
  EXPECT_EQ(load_f32(kv.row(0, 1, 0), DType::kF8, 1), 18);
  EXPECT_EQ(load_f32(kv.row(0, 1, 0), DType::kF8, 2), 16);
  EXPECT_TRUE(std::isnan(load_f32(kv.row(0, 1, 0), DType::kF8, 3)));
  EXPECT_EQ(load_f32(kv.row(0, 1, 0), DType::kF8, 4), -448);
  args.dst.head_dim = 24;
  const DeviceRopeTable odd = device.upload(table_of({24, 16, true}, 10));
  EXPECT_EQ(launch_kv_place(launcher, odd, args).field(), "head_dim");
  args.dst.head_dim = 16;
  args.src.dtype = DType::kF8;
  EXPECT_EQ(launch_kv_place(launcher, on_device, args).field(), "src.dtype");
  EXPECT_EQ(kv_place(table, args).field(), "dtype");
}

TEST(CudaParity, KvPack) {
  const std::int64_t rows = 7, ldk = 60, ldv = 53;
  const std::int32_t heads = 2, dim = 24;
  const auto k = random_floats(rows * ldk, 10), v = random_floats(rows * ldv, 11);
  for (const DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<std::byte> expected(static_cast<std::size_t>(2 * rows * heads * dim) *
                                    dtype_bytes(t)),
        cpu(expected.size());
    ASSERT_OK(
        kv_pack_reference({k.data(), v.data(), rows, ldk, ldv, heads, dim, t, expected.data()}));
    ASSERT_OK(kv_pack({k.data(), v.data(), rows, ldk, ldv, heads, dim, t, cpu.data()}));
    TestDevice device;
    auto launcher = device.launcher();
    std::byte* out = device.output(std::vector<std::byte>(expected.size()), "out");
    const KvPackArgs on_device{
        device.upload(k, "k"), device.upload(v, "v"), rows, ldk, ldv, heads, dim, t, out};
    ASSERT_OK(launch_kv_pack(launcher, on_device));
    EXPECT_EQ(cpu, expected);
    EXPECT_EQ(device.download(out, static_cast<std::int64_t>(expected.size())), expected);
  }
}

TEST(CudaParity, BlockSummariesAreThoseOfEveryBlock) {
  const std::int64_t rows = 37, block_tokens = 16, blocks = 3, first = 5;
  const std::int32_t heads = 2;
  for (const Rotary& r : kRotaries) {
    const RopeTable table = table_of(r, 300);
    for (const DType t : {DType::kF32, DType::kF16, DType::kBF16}) {
      const auto raw = to_bytes(random_floats(heads * 2 * rows * r.head_dim, 12), t);
      const std::int64_t per_block = heads * r.head_dim;
      std::vector<float> expected[3], cpu[3];
      for (int i = 0; i < 3; ++i)
        expected[i].resize(static_cast<std::size_t>(blocks * per_block)), cpu[i] = expected[i];
      for (std::int64_t b = 0; b < blocks; ++b) {
        RawKvView view = raw_view(raw.data(), rows, r.head_dim, t);
        view.data = raw.data() + b * block_tokens * view.row_stride;
        view.num_rows = std::min(block_tokens, rows - b * block_tokens);
        const auto args = [&](std::vector<float>(&o)[3]) {
          return BlockSummaryArgs{view,
                                  heads,
                                  r.head_dim,
                                  static_cast<std::int32_t>(first + b * block_tokens),
                                  o[0].data() + b * per_block,
                                  o[1].data() + b * per_block,
                                  o[2].data() + b * per_block};
        };
        ASSERT_OK(block_summary_reference(table, args(expected)));
        ASSERT_OK(block_summary(table, args(cpu)));
      }
      TestDevice device;
      auto launcher = device.launcher();
      float *mean = device.output(blocks * per_block, "mean"),
            *low = device.output(blocks * per_block, "min"),
            *high = device.output(blocks * per_block, "max");
      BlockSummariesArgs args{raw_view(device.upload(raw, "raw"), rows, r.head_dim, t),
                              heads,
                              r.head_dim,
                              block_tokens,
                              first,
                              mean,
                              low,
                              high};
      const DeviceRopeTable on_device = device.upload(table);
      ASSERT_OK(launch_block_summaries(launcher, on_device, args));
      const float* actual[3] = {mean, low, high};
      for (int i = 0; i < 3; ++i) {
        expect_close(cpu[i], expected[i], 2e-6, 1e-6, "cpu");
        expect_close(device.download(actual[i], blocks * per_block), expected[i], 2e-6, 1e-6,
                     "cuda");
      }
      args.first_position = 300 - rows + 1;
      EXPECT_EQ(launch_block_summaries(launcher, on_device, args).field(), "first_position");
    }
  }
}

}  // namespace
}  // namespace quire::cuda
