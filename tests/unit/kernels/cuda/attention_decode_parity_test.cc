// Reference, CPU and CUDA (emulated) agree on attention of few query rows, row lists and merging.
#include "kernels/cuda/attention/attention_decode.cuh"

#include <limits>
#include <memory>

#include "kernels/attention/attention_rows.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t keys, queries;
  std::int32_t kv_heads, group, dim;
  DType dtype;
  TestLayout layout;
};
const Shape kShapes[] = {
    {1, 1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
    {35, 2, 2, 3, 24, DType::kF16, TestLayout::kTokenMajor},
    {300, 1, 1, 16, 64, DType::kBF16, TestLayout::kHeadMajor},
    {257, 3, 2, 7, 128, DType::kBF16, TestLayout::kTokenMajor},
    {530, 1, 2, 4, 96, DType::kF16, TestLayout::kHeadMajor},
    {70, 2, 1, 5, 256, DType::kF32, TestLayout::kTokenMajor},
    // Keys end before, at and after borders of pages (16), tiles (64, or 32) and chunks (256)
    {16, 1, 2, 8, 128, DType::kF16, TestLayout::kHeadPages},
    {63, 2, 1, 1, 96, DType::kBF16, TestLayout::kHeadPages},
    {64, 1, 1, 4, 64, DType::kF16, TestLayout::kGranules},
    {65, 1, 1, 3, 128, DType::kBF16, TestLayout::kHeadPages},
    {255, 1, 2, 8, 64, DType::kF16, TestLayout::kHeadPages},
    {256, 1, 1, 7, 128, DType::kF16, TestLayout::kHeadPages},
    {513, 1, 1, 8, 128, DType::kBF16, TestLayout::kHeadPages},
    {97, 1, 1, 8, 256, DType::kBF16, TestLayout::kHeadMajor},
    {290, 1, 1, 9, 72, DType::kF16, TestLayout::kTokenMajor},
    {1, 1, 1, 1, 16, DType::kF8, TestLayout::kHeadMajor},
    {257, 3, 2, 7, 128, DType::kF8, TestLayout::kTokenMajor},
    {530, 1, 2, 4, 96, DType::kF8, TestLayout::kHeadPages},
    {255, 1, 2, 9, 64, DType::kF8, TestLayout::kGranules},
    {97, 2, 1, 8, 256, DType::kF8, TestLayout::kHeadMajor},
    {64, 1, 1, 3, 80, DType::kF8, TestLayout::kHeadPages},
};

/// Query rows over a cache whose positions are shuffled, so that masks cut anywhere.
struct Scene {
  explicit Scene(const Shape& shape)
      : s(shape),
        heads(s.kv_heads * s.group),
        kv(s.keys, s.kv_heads, s.dim, s.dtype, s.layout, 25),
        q(random_floats(s.queries * heads * s.dim, 26)) {
    std::shuffle(kv.positions().begin(), kv.positions().end(), std::mt19937(27));
    for (std::int64_t t = 0; t < s.queries; ++t)
      positions.push_back(static_cast<std::int32_t>(s.keys - 1 - t * s.keys / 3));
  }
  AttentionArgs arguments(std::vector<float>& out, std::vector<float>& lse) const {
    out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
    lse.assign(static_cast<std::size_t>(s.queries * heads),
               std::numeric_limits<float>::quiet_NaN());
    const std::int64_t width = std::int64_t{heads} * s.dim;
    return {q.data(),       positions.data(),
            s.queries,      width,
            heads,          1.0f / std::sqrt(static_cast<float>(s.dim)),
            kv.view(false), out.data(),
            width,          lse.data()};
  }
  Shape s;
  std::int32_t heads;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
};

/// Runs the kernels. An empty `lists` means the whole cache; `first` and `count` choose query rows.
Status run_on_device(const Scene& scene, const std::vector<std::vector<std::int32_t>>& lists,
                     std::int64_t first, std::int64_t count, std::vector<float>& out,
                     std::vector<float>& lse, std::int32_t run_chunks = 0, std::int64_t keys = -1,
                     std::vector<std::uint16_t>* rounded = nullptr) {
  TestDevice device;
  DecodeAttentionArgs args{scene.arguments(out, lse), nullptr, 0, nullptr, nullptr};
  args.run_chunks = run_chunks;
  AttentionArgs& a = args.attention;
  const std::int64_t n = count * a.ldq;
  a.q = device.upload(scene.q, "q") + first * a.ldq;
  a.query_positions = device.upload(scene.positions, "query positions") + first;
  a.rows = count;
  a.kv = device.upload(scene.kv.view(keys < 0 ? scene.s.keys : keys, false));
  std::uint16_t* bits = nullptr;
  if (rounded != nullptr) {
    bits = device.output(std::vector<std::uint16_t>(static_cast<std::size_t>(n), 0x7fc1), "out");
    args.to = DType::kBF16;
  }
  a.out = rounded != nullptr ? reinterpret_cast<float*>(bits) : device.output(n, "out");
  a.lse = device.output(count * scene.heads, "lse");
  if (!lists.empty()) {
    std::vector<RowList> views;
    for (const auto& list : lists) {
      views.push_back({device.upload(list, "list"), static_cast<std::int64_t>(list.size())});
      args.longest_list = std::max(args.longest_list, views.back().length);
    }
    args.lists = device.upload(views, "lists");
  }
  args.scratch = device.output(decode_attention_scratch_bytes(args) / 4, "scratch");
  auto launcher = device.launcher();
  QUIRE_RETURN_IF_ERROR(with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    return launch_decode_attention<E>(launcher, args);
  }));
  if (rounded != nullptr) {
    *rounded = TestDevice::download(bits, n);
  } else {
    out = TestDevice::download(a.out, n);
  }
  lse = TestDevice::download(a.lse, count * scene.heads);
  return {};
}

/// bf16 may run on AMX, which rounds queries and weights, so its tolerance is larger.
double cpu_tolerance(DType t) { return t == DType::kBF16 ? 2e-2 : 2e-4; }
/// Two numbers of 16 bits stand for a query's channel or a weight: 2^-17 of it is lost in bf16, and
/// less in f16.
double cuda_tolerance(DType t) { return t == DType::kBF16 ? 6e-5 : 2e-5; }

TEST(CudaParity, DecodeAttention) {
  for (const Shape& s : kShapes) {
    const Scene scene(s);
    std::vector<float> expected, expected_lse, cpu, cpu_lse, cuda, cuda_lse;
    ASSERT_OK(attention_reference(scene.arguments(expected, expected_lse)));
    ASSERT_OK(attention(scene.arguments(cpu, cpu_lse)));
    ASSERT_OK(run_on_device(scene, {}, 0, s.queries, cuda, cuda_lse));
    const std::string what = "keys " + std::to_string(s.keys) + " head_dim " +
                             std::to_string(s.dim);
    expect_close(cpu, expected, cpu_tolerance(s.dtype), cpu_tolerance(s.dtype), what + " cpu");
    expect_close(cuda, expected, cuda_tolerance(s.dtype), cuda_tolerance(s.dtype), what);
    expect_close(cuda_lse, expected_lse, cuda_tolerance(s.dtype), cuda_tolerance(s.dtype),
                 what + " lse");
  }
}

TEST(CudaParity, DecodeAttentionOverRowLists) {
  for (const Shape& s : kShapes) {
    const Scene scene(s);
    std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(s.kv_heads));
    for (std::int32_t m = 0; m < s.kv_heads; ++m) {
      for (std::int32_t j = m; j < s.keys; j += 2 * m + 1)
        lists[static_cast<std::size_t>(m)].push_back(j);
    }
    if (s.kv_heads > 1 && s.dim == 24) lists[1].clear();  // a head without a visible key
    std::vector<RowList> views;
    for (const auto& list : lists)
      views.push_back({list.data(), static_cast<std::int64_t>(list.size())});
    std::vector<float> expected, expected_lse, cpu, cpu_lse, cuda, cuda_lse;
    ASSERT_OK(attention_rows_reference({scene.arguments(expected, expected_lse), views.data()}));
    ASSERT_OK(attention_rows({scene.arguments(cpu, cpu_lse), views.data()}));
    ASSERT_OK(run_on_device(scene, lists, 0, s.queries, cuda, cuda_lse));
    expect_close(cpu, expected, cpu_tolerance(s.dtype), cpu_tolerance(s.dtype), "cpu");
    expect_close(cuda, expected, cuda_tolerance(s.dtype), cuda_tolerance(s.dtype), "out");
    expect_close(cuda_lse, expected_lse, cuda_tolerance(s.dtype), cuda_tolerance(s.dtype), "lse");
  }
}

std::vector<std::uint16_t> in_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> out;
  for (const float x : values) out.push_back(f32_to_bf16(x));
  return out;
}

TEST(CudaParity, DecodeAttentionRoundsAsAConversionDoes) {
  for (const Shape& s : kShapes) {
    Scene scene(s);
    scene.positions.back() = -1;  // sees nothing
    std::vector<float> full, full_lse, unused, lse;
    std::vector<std::uint16_t> rounded;
    ASSERT_OK(run_on_device(scene, {}, 0, s.queries, full, full_lse));
    ASSERT_OK(run_on_device(scene, {}, 0, s.queries, unused, lse, 0, -1, &rounded));
    EXPECT_EQ(rounded, in_bf16(full)) << "keys " << s.keys << " head_dim " << s.dim;
    EXPECT_EQ(lse, full_lse);
  }
}

TEST(CudaParity, ADecodeRowHasTheSameBitsAlone) {
  const Scene scene(kShapes[3]);
  std::vector<float> all, all_lse, one, one_lse;
  ASSERT_OK(run_on_device(scene, {}, 0, scene.s.queries, all, all_lse));
  ASSERT_OK(run_on_device(scene, {}, 1, 1, one, one_lse));
  const std::int64_t width = std::int64_t{scene.heads} * scene.s.dim;
  EXPECT_EQ(one, std::vector<float>(all.begin() + width, all.begin() + 2 * width));
  EXPECT_EQ(one_lse,
            std::vector<float>(all_lse.begin() + scene.heads, all_lse.begin() + 2 * scene.heads));
}

TEST(CudaParity, RunsOfChunksDoNotChangeBits) {
  // Six chunks, the last one of 20 keys; a list's chunks end elsewhere
  const Scene scene({1300, 1, 2, 4, 64, DType::kBF16, TestLayout::kHeadPages});
  std::vector<std::vector<std::int32_t>> lists(2);
  for (std::int32_t j = 0; j < 1300; ++j) {
    if (j % 3 != 1) lists[0].push_back(j);
    if (j % 64 < 16) lists[1].push_back(j);
  }
  for (const auto& chosen : {std::vector<std::vector<std::int32_t>>{}, lists}) {
    std::vector<float> expected, expected_lse, out, lse;
    ASSERT_OK(run_on_device(scene, chosen, 0, 1, expected, expected_lse, 1));
    for (const std::int32_t run : {2, 4, 5, 7}) {
      ASSERT_OK(run_on_device(scene, chosen, 0, 1, out, lse, run));
      EXPECT_EQ(out, expected) << run;
      EXPECT_EQ(lse, expected_lse) << run;
    }
  }
}

TEST(CudaParity, RunsFillADeviceAndStayShort) {
  DeviceProperties device;
  device.multiprocessors = 132;
  device.threads_per_multiprocessor = 2048;
  device.shared_bytes_per_block = 227 * 1024;
  device.shared_bytes_per_multiprocessor = 228 * 1024;
  const auto run = [&](std::int64_t sequences, std::int64_t keys) {
    DecodeAttentionArgs args{};
    args.attention.rows = sequences;
    args.attention.num_heads = 32;
    args.attention.kv.num_kv_heads = 8;
    args.attention.kv.num_rows = keys;
    return best_run_chunks(device, args);
  };
  EXPECT_EQ(run(1, 1024), 1);
  EXPECT_EQ(run(1, 32768), 1);
  EXPECT_EQ(run(8, 16384), 2);
  EXPECT_EQ(run(32, 8192), 4);
  EXPECT_EQ(run(64, 131072), 4);
  EXPECT_EQ(run(0, 0), 1);
  device.multiprocessors = 0;
  EXPECT_EQ(run(64, 131072), 1);
}

TEST(CudaParity, KeysThatADecodeRowCannotSeeDoNotChangeItsBits) {
  for (const Shape& shape : {Shape{300, 1, 1, 4, 128, DType::kF16, TestLayout::kHeadPages},
                             Shape{300, 1, 1, 4, 128, DType::kF32, TestLayout::kHeadPages}}) {
    Scene scene(shape);
    for (std::int64_t i = 0; i < shape.keys; ++i)
      scene.kv.positions()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    for (const std::int32_t last : {7, 63, 200, 255}) {
      scene.positions[0] = last;
      std::vector<float> all, all_lse, own, own_lse;
      ASSERT_OK(run_on_device(scene, {}, 0, 1, all, all_lse));
      ASSERT_OK(run_on_device(scene, {}, 0, 1, own, own_lse, 0, last + 1));
      EXPECT_EQ(own, all) << last;
      EXPECT_EQ(own_lse, all_lse) << last;
    }
  }
}

TEST(CudaParity, ARowThatSeesNothingIsZero) {
  Scene scene(kShapes[1]);
  scene.positions = {-1, 40};
  std::vector<float> out, lse;
  ASSERT_OK(run_on_device(scene, {}, 0, 2, out, lse));
  for (std::int64_t i = 0; i < scene.heads * scene.s.dim; ++i)
    EXPECT_EQ(out[static_cast<std::size_t>(i)], 0.0f);
  for (std::int64_t h = 0; h < scene.heads; ++h)
    EXPECT_EQ(lse[static_cast<std::size_t>(h)], -kInfinity);
  EXPECT_NE(out.back(), 0.0f);
}

TEST(CudaParity, SequencesOfABatchHaveTheBitsOfEachAlone) {
  // The caches have other lengths, one of them is empty, and the third uses lists.
  const Shape shapes[] = {{300, 1, 2, 3, 64, DType::kF16, TestLayout::kHeadMajor},
                          {17, 1, 2, 3, 64, DType::kF16, TestLayout::kHeadMajor},
                          {530, 1, 2, 3, 64, DType::kF16, TestLayout::kHeadMajor}};
  const std::vector<std::vector<std::int32_t>> lists = {{1, 2, 300, 529}, {0}};
  const std::int64_t heads = 6, width = heads * 64;
  std::vector<float> expected, expected_lse, q, out, lse;
  std::vector<std::int32_t> positions;
  TestDevice device;
  std::vector<SequenceKv> sequences;
  std::vector<std::unique_ptr<Scene>> scenes;
  for (const Shape& shape : shapes) {
    scenes.push_back(std::make_unique<Scene>(shape));
    const Scene& scene = *scenes.back();
    const bool listed = shape.keys == 530;
    ASSERT_OK(run_on_device(scene, listed ? lists : std::vector<std::vector<std::int32_t>>{}, 0, 1,
                            out, lse));
    expected.insert(expected.end(), out.begin(), out.end());
    expected_lse.insert(expected_lse.end(), lse.begin(), lse.end());
    q.insert(q.end(), scene.q.begin(), scene.q.begin() + width);
    positions.push_back(scene.positions[0]);
    const KvView kv = device.upload(scene.kv.view(false));
    const std::vector<RowList> views = {{device.upload(lists[0], "list"), 4},
                                        {device.upload(lists[1], "list"), 1}};
    sequences.push_back(
        {kv.pages, kv.positions, kv.num_rows, listed ? device.upload(views, "lists") : nullptr});
  }
  sequences.push_back({nullptr, nullptr, 0, nullptr});
  q.insert(q.end(), q.begin(), q.begin() + width);
  positions.push_back(9);
  expected.insert(expected.end(), static_cast<std::size_t>(width), 0.0f);
  expected_lse.insert(expected_lse.end(), static_cast<std::size_t>(heads), -kInfinity);

  DecodeAttentionArgs args{scenes[0]->arguments(out, lse), nullptr, 300, nullptr,
                           device.upload(sequences, "sequences")};
  args.attention.q = device.upload(q, "q");
  args.attention.query_positions = device.upload(positions, "query positions");
  args.attention.rows = 4;
  args.attention.out = device.output(4 * width, "out");
  args.attention.lse = device.output(4 * heads, "lse");
  args.scratch = device.output(decode_attention_scratch_bytes(args) / 4, "scratch");
  auto launcher = device.launcher();
  ASSERT_OK(launch_decode_attention<F16>(launcher, args));
  EXPECT_EQ(device.download(args.attention.out, 4 * width), expected);
  EXPECT_EQ(device.download(args.attention.lse, 4 * heads), expected_lse);
}

TEST(CudaParity, SequencesOfUnequalLengthHaveTheBitsOfEachAlone) {
  const std::int64_t lengths[] = {1, 256, 0, 700, 257, 64};
  const std::int32_t heads = 16;  // groups of 8
  const std::int64_t width = std::int64_t{heads} * 128;
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    std::vector<float> expected, expected_lse, q, out, lse;
    std::vector<std::int32_t> positions;
    TestDevice device;
    std::vector<SequenceKv> sequences;
    std::vector<std::unique_ptr<Scene>> scenes;
    for (const std::int64_t keys : lengths) {
      scenes.push_back(std::make_unique<Scene>(
          Shape{keys, 1, 2, heads / 2, 128, dtype, TestLayout::kHeadPages}));
      const Scene& scene = *scenes.back();
      ASSERT_OK(run_on_device(scene, {}, 0, 1, out, lse));
      expected.insert(expected.end(), out.begin(), out.end());
      expected_lse.insert(expected_lse.end(), lse.begin(), lse.end());
      q.insert(q.end(), scene.q.begin(), scene.q.begin() + width);
      positions.push_back(scene.positions[0]);
      const KvView kv = device.upload(scene.kv.view(false));
      sequences.push_back({kv.pages, kv.positions, kv.num_rows, nullptr});
    }
    const auto rows = static_cast<std::int64_t>(sequences.size());
    DecodeAttentionArgs args{scenes[0]->arguments(out, lse), nullptr, 700, nullptr,
                             device.upload(sequences, "sequences")};
    args.attention.q = device.upload(q, "q");
    args.attention.query_positions = device.upload(positions, "query positions");
    args.attention.rows = rows;
    for (const std::int32_t run : {1, 2, 3}) {
      args.run_chunks = run;
      args.attention.out = device.output(rows * width, "out");
      args.attention.lse = device.output(rows * heads, "lse");
      args.scratch = device.output(decode_attention_scratch_bytes(args) / 4, "scratch");
      auto launcher = device.launcher();
      ASSERT_OK(dtype == DType::kF16 ? launch_decode_attention<F16>(launcher, args)
                                     : launch_decode_attention<float>(launcher, args));
      EXPECT_EQ(TestDevice::download(args.attention.out, rows * width), expected);
      EXPECT_EQ(TestDevice::download(args.attention.lse, rows * heads), expected_lse);
    }
  }
}

/// Partial results of which some are empty; an empty one holds NaN, because nothing may use it.
struct Parts {
  Parts(std::int64_t num_parts, std::int64_t num_rows, std::int64_t head_dim)
      : parts(num_parts),
        rows(num_rows),
        dim(head_dim),
        out(random_floats(parts * rows * dim, 28)),
        lse(random_floats(parts * rows, 29, 20.0f)) {
    for (std::int64_t p = 0; p < parts; ++p) empty(p, 2);
    empty(1, 3);
    empty(0, 0);
  }
  void empty(std::int64_t p, std::int64_t row) {
    const std::int64_t i = p * rows + row;
    lse[static_cast<std::size_t>(i)] = -kInfinity;
    std::fill_n(out.begin() + i * dim, dim, std::numeric_limits<float>::quiet_NaN());
  }
  Status merge(std::vector<float>& merged, std::vector<float>& merged_lse) const {
    TestDevice device;
    float *to = device.output(rows * dim, "out"), *to_lse = device.output(rows, "lse");
    QUIRE_RETURN_IF_ERROR(merge_on(device, to, to_lse, DType::kF32));
    merged = TestDevice::download(to, rows * dim);
    merged_lse = TestDevice::download(to_lse, rows);
    return {};
  }
  Status merge_rounded(std::vector<std::uint16_t>& merged, std::vector<float>& merged_lse) const {
    TestDevice device;
    auto* to = device.output(std::vector<std::uint16_t>(static_cast<std::size_t>(rows * dim), 1),
                             "out");
    float* to_lse = device.output(rows, "lse");
    QUIRE_RETURN_IF_ERROR(merge_on(device, reinterpret_cast<float*>(to), to_lse, DType::kBF16));
    merged = TestDevice::download(to, rows * dim);
    merged_lse = TestDevice::download(to_lse, rows);
    return {};
  }
  Status merge_on(TestDevice& device, float* to, float* to_lse, DType dtype) const {
    auto launcher = device.launcher();
    return launch_merge_attention(
        launcher, {device.upload(out, "parts"), device.upload(lse, "part lse"), parts, rows, dim,
                   to, 2, 2 * dim, to_lse, dtype});
  }
  std::int64_t parts, rows, dim;
  std::vector<float> out, lse;
};

TEST(CudaParity, MergeAttentionWithEmptyParts) {
  for (const auto& [count, dim] : {std::pair{4, 33}, {1, 64}, {9, 128}, {33, 256}, {1100, 8}}) {
    const Parts parts(std::max(count, 2), 6, dim);
    const std::int64_t n = parts.rows * dim;
    // Empty parts count as zeros in the function of the CPU
    std::vector<float> zeroed = parts.out;
    for (float& x : zeroed) x = std::isnan(x) ? 0.0f : x;
    std::vector<float> expected(zeroed.begin(), zeroed.begin() + n),
        expected_lse(parts.lse.begin(), parts.lse.begin() + parts.rows), out, lse;
    for (std::int64_t p = 1; p < parts.parts; ++p)
      merge_attention(expected.data(), expected_lse.data(), zeroed.data() + p * n,
                      parts.lse.data() + p * parts.rows, parts.rows, dim);
    ASSERT_OK(parts.merge(out, lse));
    expect_close(out, expected, 4e-6, 4e-6, "out of " + std::to_string(count));
    expect_close(lse, expected_lse, 4e-6, 4e-6, "lse of " + std::to_string(count));
    std::vector<std::uint16_t> rounded;
    std::vector<float> rounded_lse;
    ASSERT_OK(parts.merge_rounded(rounded, rounded_lse));
    EXPECT_EQ(rounded, in_bf16(out)) << count;
    EXPECT_EQ(rounded_lse, lse) << count;
  }
}

TEST(CudaParity, EmptyPartsAtTheEndDoNotChangeBits) {
  Parts parts(21, 6, 40);
  for (std::int64_t p = 13; p < 21; ++p) {
    for (std::int64_t row = 0; row < 6; ++row) parts.empty(p, row);
  }
  std::vector<float> longer, longer_lse, shorter, shorter_lse;
  ASSERT_OK(parts.merge(longer, longer_lse));
  parts.parts = 13;
  parts.out.resize(static_cast<std::size_t>(13 * 6 * 40));
  parts.lse.resize(13 * 6);
  ASSERT_OK(parts.merge(shorter, shorter_lse));
  EXPECT_EQ(shorter, longer);
  EXPECT_EQ(shorter_lse, longer_lse);
}

TEST(CudaParity, MergedRowsHaveTheSameBitsHoweverManyThereAre) {
  for (const auto& [count, dim] : {std::pair{12, 132}, {30, 36}}) {  // by warps, and by blocks
    const std::int64_t few = 5;
    const Parts many(count, 520, dim);
    Parts first(count, few, dim);
    for (std::int64_t p = 0; p < count; ++p) {
      std::copy_n(many.out.begin() + p * many.rows * dim, few * dim,
                  first.out.begin() + p * few * dim);
      std::copy_n(many.lse.begin() + p * many.rows, few, first.lse.begin() + p * few);
    }
    std::vector<float> out, lse, few_out, few_lse;
    ASSERT_OK(many.merge(out, lse));
    ASSERT_OK(first.merge(few_out, few_lse));
    out.resize(few_out.size());
    lse.resize(few_lse.size());
    EXPECT_EQ(out, few_out) << count;
    EXPECT_EQ(lse, few_lse) << count;
  }
}

TEST(CudaParity, DecodeAttentionRefusesBadShapes) {
  const Scene scene(kShapes[1]);
  std::vector<float> out, lse;
  const DecodeAttentionArgs good{scene.arguments(out, lse), nullptr, 0, out.data(), nullptr};
  TestDevice device;
  auto launcher = device.launcher();
  const auto field_of = [&](DecodeAttentionArgs args) {
    return launch_decode_attention<F16>(launcher, args).field();
  };
  DecodeAttentionArgs bad = good;
  bad.scratch = nullptr;
  EXPECT_EQ(field_of(bad), "scratch");
  bad = good;
  bad.attention.num_heads = 5;
  EXPECT_EQ(field_of(bad), "num_heads");
  bad = good;
  bad.attention.ldo = 1;
  EXPECT_EQ(field_of(bad), "ldq");
  bad = good;
  bad.attention.kv.token_stride = 24;
  EXPECT_EQ(field_of(bad), "kv");
  bad = good;
  bad.attention.rows = 70000;
  EXPECT_EQ(field_of(bad), "rows");
  bad = good;
  bad.to = DType::kF16;
  EXPECT_EQ(field_of(bad), "to");
  bad = good;
  bad.attention.kv.dtype = DType::kF8;
  EXPECT_EQ(launch_decode_attention<F8>(launcher, bad).field(), "head_dim");
}

}  // namespace
}  // namespace quire::cuda
