// Reference, CPU and CUDA (emulated) agree on SamKV's scores of blocks, and on recomputed rows that
// blend with stored ones.
#include "kernels/cuda/rows/samkv.cuh"

#include <span>

#include "kernels/rows/fusion.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

RopeTable table_of(std::int32_t head_dim, std::int32_t rotary_dim, bool interleaved) {
  RopeConfig c;
  c.head_dim = head_dim;
  c.rotary_dim = rotary_dim;
  c.interleaved = interleaved;
  auto table = RopeTable::build(c, 300);
  EXPECT_TRUE(table.ok());
  return std::move(table).value();
}

struct Shape {
  std::int32_t kv_heads, group, dim, rotary;
  bool interleaved;
};
const Shape kShapes[] = {
    {1, 1, 8, 8, false}, {2, 7, 64, 64, false}, {3, 2, 24, 16, true}, {1, 4, 128, 64, false}};

TEST(CudaParity, SamkvScoresOfSeveralDocuments) {
  for (const Shape& s : kShapes) {
    const RopeTable table = table_of(s.dim, s.rotary, s.interleaved);
    const std::int32_t heads = s.kv_heads * s.group;
    const std::int64_t width = std::int64_t{s.kv_heads} * s.dim;
    const auto query = random_floats(heads * s.dim, 1), own = random_floats(heads * s.dim, 9);
    const std::int64_t blocks[] = {1, 0, 67, 5};
    const std::int32_t distances[] = {0, 17, 299, 41};
    TestDevice device;
    auto launcher = device.launcher();
    std::vector<SamkvDocument> documents;
    std::vector<std::vector<float>> expected, comparable;
    for (int d = 0; d < 4; ++d) {
      const auto means = random_floats(blocks[d] * width, static_cast<std::uint32_t>(2 + d));
      std::vector<float> turned(query.size());
      const bool has_own = d % 2 == 0;
      ASSERT_OK(
          rope_rotate_reference(table, {has_own ? own.data() : query.data(), turned.data(),
                                        &distances[d], 1, heads, heads * s.dim, heads * s.dim}));
      std::vector<double> pooled(static_cast<std::size_t>(width));
      double squares = 0;
      for (std::int64_t c = 0; c < width; ++c) {
        for (std::int64_t g = 0; g < s.group; ++g)
          pooled[static_cast<std::size_t>(c)] +=
              turned[static_cast<std::size_t>((c / s.dim * s.group + g) * s.dim + c % s.dim)] /
              static_cast<double>(s.group);
        squares += pooled[static_cast<std::size_t>(c)] * pooled[static_cast<std::size_t>(c)];
      }
      expected.emplace_back();
      comparable.emplace_back();
      for (std::int64_t b = 0; b < blocks[d]; ++b) {
        double sum = 0;
        for (std::int64_t c = 0; c < width; ++c)
          sum += pooled[static_cast<std::size_t>(c)] *
                 means[static_cast<std::size_t>(b * width + c)];
        expected.back().push_back(static_cast<float>(sum));
        comparable.back().push_back(static_cast<float>(sum / std::sqrt(squares)));
      }
      documents.push_back({device.upload(means, "means"), blocks[d], distances[d],
                           device.output(blocks[d], "scores"),
                           device.output(blocks[d], "comparable"),
                           has_own ? device.upload(own, "a query of its own") : nullptr});
    }
    const DeviceRopeTable on_device = device.upload(table);
    SamkvScoresArgs args{device.upload(query, "query"),         heads, s.kv_heads, s.dim,
                         device.upload(documents, "documents"), 4,     67};
    ASSERT_OK(launch_samkv_scores(launcher, on_device, args));
    for (std::size_t d = 0; d < 4; ++d) {
      expect_close(device.download(documents[d].scores, documents[d].num_blocks), expected[d], 3e-5,
                   1e-5, "scores");
      expect_close(device.download(documents[d].comparable, documents[d].num_blocks), comparable[d],
                   3e-5, 1e-5, "comparable");
    }
    args.num_heads = 0;
    EXPECT_EQ(launch_samkv_scores(launcher, on_device, args).field(), "num_heads");
  }
}

TEST(CudaParity, AQueryWithoutLengthHasNothingToCompare) {
  const RopeTable table = table_of(8, 8, false);
  TestDevice device;
  auto launcher = device.launcher();
  float *scores = device.output(1, "scores"), *comparable = device.output(1, "comparable");
  const std::vector<SamkvDocument> documents = {
      {device.upload(random_floats(8, 1), "means"), 1, 3, scores, comparable}};
  ASSERT_OK(launch_samkv_scores(launcher, device.upload(table),
                                {device.upload(std::vector<float>(8), "query"), 1, 1, 8,
                                 device.upload(documents, "documents"), 1, 1}));
  EXPECT_EQ(device.download(scores, 1), std::vector<float>{0});
  EXPECT_EQ(device.download(comparable, 1), std::vector<float>{0});
}

/// Defines the kernel's result: a blend in f64.
struct Recomputed {
  Recomputed(const Shape& shape, DType raw_type)
      : s(shape),
        raw(raw_type),
        width(std::int64_t{s.kv_heads} * s.dim),
        k(random_floats(kRows * kLd(), 1)),
        v(random_floats(kRows * kLd(), 2)) {
    // Row 1 is the opposite of what is stored, row 4 is zero, and the others are like it.
    const auto noise = random_floats(kRows * 2 * width, 3, 0.3f);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < width; ++c) {
        const float sign = r == 1 ? -1.0f : r == 4 ? 0.0f : 1.0f;
        old_k.push_back(sign * k[static_cast<std::size_t>(r * kLd() + c)] +
                        (r == 4 ? 0 : noise[static_cast<std::size_t>(r * 2 * width + c)]));
        old_v.push_back(sign * v[static_cast<std::size_t>(r * kLd() + c)] +
                        (r == 4 ? 0 : noise[static_cast<std::size_t>((r * 2 + 1) * width + c)]));
      }
    }
    old_k = rounded(old_k, raw);
    old_v = rounded(old_v, raw);
  }
  std::int64_t kLd() const { return width + 3; }

  /// Returns the blend of all rows, [kRows, kLd()], where what lies between rows is as it was.
  std::vector<float> meaning(const std::vector<float>& fresh, const std::vector<float>& old) const {
    std::vector<float> out = fresh;
    for (std::int64_t r = 0; r < kRows; ++r) blend(out, old, r);
    return out;
  }
  /// Returns the same by the CPU's functions.
  std::vector<float> on_cpu(std::vector<float> fresh, const std::vector<float>& old) const {
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto n = static_cast<std::size_t>(width);
      const std::span row(fresh.data() + r * kLd(), n);
      const std::span<const float> before(old.data() + r * width, n);
      fuse(row, before, fusion_weight(row, before));
    }
    return fresh;
  }
  /// Returns the stored rows as the store holds them, [heads][2][kRows][dim] of `raw`.
  std::vector<std::byte> stored() const {
    const auto element = static_cast<std::int64_t>(dtype_bytes(raw));
    std::vector<std::byte> out(static_cast<std::size_t>(2 * kRows * width * element));
    EXPECT_OK(kv_pack_reference(
        {old_k.data(), old_v.data(), kRows, width, width, s.kv_heads, s.dim, raw, out.data()}));
    return out;
  }
  RawKvView view(const void* data) const {
    const std::int64_t row = s.dim * static_cast<std::int64_t>(dtype_bytes(raw));
    return {data, kRows, raw, 2 * kRows * row, kRows * row, row};
  }

  void blend(std::vector<float>& fresh, const std::vector<float>& old, std::int64_t r) const {
    double dot = 0, fresh2 = 0, old2 = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double x = fresh[static_cast<std::size_t>(r * kLd() + c)],
                   y = old[static_cast<std::size_t>(r * width + c)];
      dot += x * y;
      fresh2 += x * x;
      old2 += y * y;
    }
    const double cosine = dot / std::sqrt(fresh2 * old2),
                 theta = std::isfinite(cosine) ? std::clamp(cosine, 0.0, 1.0) : 0;
    for (std::int64_t c = 0; c < width; ++c) {
      float& x = fresh[static_cast<std::size_t>(r * kLd() + c)];
      x = static_cast<float>(theta * x +
                             (1 - theta) * old[static_cast<std::size_t>(r * width + c)]);
    }
  }

  static constexpr std::int64_t kRows = 5;
  Shape s;
  DType raw;
  std::int64_t width;
  std::vector<float> k, v, old_k, old_v;
};

TEST(CudaParity, RecomputedRowsBlendWithStoredOnes) {
  for (const Shape& s : kShapes) {
    for (const DType raw : {DType::kF16, DType::kF32, DType::kBF16}) {
      const Recomputed scene(s, raw);
      const std::vector<std::byte> stored = scene.stored();
      const auto k = scene.meaning(scene.k, scene.old_k), v = scene.meaning(scene.v, scene.old_v);
      const std::string what = std::string(dtype_name(raw)) + ", " + std::to_string(s.dim);

      expect_close(scene.on_cpu(scene.k, scene.old_k), k, 1e-6, 1e-6, what + " keys of the CPU");
      expect_close(scene.on_cpu(scene.v, scene.old_v), v, 1e-6, 1e-6, what + " values of the CPU");

      TestDevice device;
      auto launcher = device.launcher();
      float *device_k = device.output(scene.k, "k"), *device_v = device.output(scene.v, "v");
      ASSERT_OK(launch_blend_rows(
          launcher, {device_k, device_v, Recomputed::kRows, scene.kLd(),
                     scene.view(device.upload(stored, "stored")), s.kv_heads, s.dim}));
      expect_close(device.download(device_k, std::ssize(k)), k, 1e-5, 1e-6, what + " keys");
      expect_close(device.download(device_v, std::ssize(v)), v, 1e-5, 1e-6, what + " values");
    }
  }
}

}  // namespace
}  // namespace quire::cuda
