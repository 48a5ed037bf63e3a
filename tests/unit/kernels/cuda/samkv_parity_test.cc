// Reference and CUDA (emulated) agree on SamKV's scores of blocks, and on recomputed rows that
// overwrite or blend with stored ones.
#include "kernels/cuda/rows/samkv.cuh"

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

/// Defines the kernel's result: blend in f64, round to the stored type, place.
struct Recomputed {
  Recomputed(const Shape& shape, DType raw_type, DType target_type)
      : s(shape),
        raw(raw_type),
        target(target_type),
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

  /// Returns [width] of row r.
  std::vector<float> meaning(const std::vector<float>& fresh, const std::vector<float>& old,
                             std::int64_t r, bool fuse) const {
    double dot = 0, fresh2 = 0, old2 = 0;
    for (std::int64_t c = 0; c < width; ++c) {
      const double x = fresh[static_cast<std::size_t>(r * kLd() + c)],
                   y = old[static_cast<std::size_t>(r * width + c)];
      dot += x * y;
      fresh2 += x * x;
      old2 += y * y;
    }
    const double cosine = dot / std::sqrt(fresh2 * old2), theta = !fuse ? 1
                                                                  : std::isfinite(cosine)
                                                                      ? std::clamp(cosine, 0.0, 1.0)
                                                                      : 0;
    std::vector<float> out;
    for (std::int64_t c = 0; c < width; ++c) {
      out.push_back(static_cast<float>(theta * fresh[static_cast<std::size_t>(r * kLd() + c)] +
                                       (1 - theta) * old[static_cast<std::size_t>(r * width + c)]));
    }
    return out;
  }

  static constexpr std::int64_t kRows = 5;
  Shape s;
  DType raw, target;
  std::int64_t width;
  std::vector<float> k, v, old_k, old_v;
};

TEST(CudaParity, RecomputedRowsOverwriteOrBlend) {
  const std::vector<std::int32_t> positions = {4, 299, 0, 17, 18}, to = {33, 2, 16, 0, 31};
  for (const Shape& s : kShapes) {
    const RopeTable table = table_of(s.dim, s.rotary, s.interleaved);
    for (const auto& [raw, target] :
         {std::pair{DType::kF16, DType::kBF16}, std::pair{DType::kF32, DType::kF32},
          std::pair{DType::kBF16, DType::kF16}}) {
      const Recomputed scene(s, raw, target);
      for (const bool fuse : {false, true}) {
        PagedKv expected(34, s.kv_heads, s.dim, target, TestLayout::kHeadMajor, 4),
            actual(34, s.kv_heads, s.dim, target, TestLayout::kHeadMajor, 4);
        std::vector<float> k, v;
        for (std::int64_t r = 0; r < Recomputed::kRows; ++r) {
          for (const float x : scene.meaning(scene.k, scene.old_k, r, fuse)) k.push_back(x);
          for (const float x : scene.meaning(scene.v, scene.old_v, r, fuse)) v.push_back(x);
        }
        const auto element = static_cast<std::int64_t>(dtype_bytes(raw)), row = s.dim * element,
                   rows = Recomputed::kRows;
        std::vector<std::byte> packed(static_cast<std::size_t>(2 * rows * scene.width * element));
        ASSERT_OK(kv_pack_reference({k.data(), v.data(), rows, scene.width, scene.width, s.kv_heads,
                                     s.dim, raw, packed.data()}));
        ASSERT_OK(
            kv_place_reference(table, {{packed.data(), rows, raw, 2 * rows * row, rows * row, row},
                                       expected.mutable_view(),
                                       positions.data(),
                                       to.data(),
                                       0}));

        TestDevice device;
        auto launcher = device.launcher();
        std::vector<const void*> stored;  // [heads][2][head_dim] per row
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<float> one;
          for (std::int64_t h = 0; h < s.kv_heads; ++h) {
            for (const auto* part : {&scene.old_k, &scene.old_v})
              one.insert(one.end(), part->begin() + r * scene.width + h * s.dim,
                         part->begin() + r * scene.width + (h + 1) * s.dim);
          }
          stored.push_back(device.upload(to_bytes(one, raw), "a stored row"));
        }
        const MutableKvView host = actual.mutable_view(), attached = device.attach(host);
        const RecomputedRowsArgs args{device.upload(scene.k, "k"),
                                      device.upload(scene.v, "v"),
                                      rows,
                                      scene.kLd(),
                                      fuse ? device.upload(stored, "stored") : nullptr,
                                      2 * row,
                                      row,
                                      raw,
                                      device.upload(positions, "positions"),
                                      device.upload(to, "rows"),
                                      attached};
        ASSERT_OK(launch_recomputed_rows(launcher, device.upload(table), args));
        TestDevice::bring_back(attached, host);
        // A blend may round to the neighbouring value.
        const double tolerance = 2 * (epsilon_of(raw) + epsilon_of(target)) + 2e-6;
        for (std::int64_t r = 0; r < 34; ++r) {
          for (std::int32_t h = 0; h < s.kv_heads; ++h) {
            for (int part = 0; part < 2; ++part) {
              std::vector<float> a, b;
              for (std::int64_t c = 0; c < s.dim; ++c)
                a.push_back(load_f32(actual.row(r, part, h), target, c)),
                    b.push_back(load_f32(expected.row(r, part, h), target, c));
              expect_close(a, b, 4 * tolerance, tolerance,
                           "row " + std::to_string(r) + (fuse ? " blended" : " overwritten"));
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
