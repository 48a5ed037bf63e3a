// Reference, CPU and CUDA (emulated) agree on the rows that groups of queries attend to most.
#include "kernels/cuda/attention/voted_lists.cuh"

#include <string>

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t rows;
  std::int32_t kv_heads, group, dim;
  std::int64_t groups, first, k;
  DType dtype;
};

constexpr Shape kShapes[] = {
    {1, 1, 1, 8, 1, 0, 3, DType::kF32},         {150, 2, 3, 24, 5, 17, 20, DType::kF32},
    {300, 2, 4, 128, 40, 70, 33, DType::kBF16}, {131, 1, 7, 96, 11, 64, 500, DType::kF16},
    {90, 3, 16, 64, 5, 0, 1, DType::kBF16},     {140, 1, 5, 256, 30, 3, 12, DType::kF16},
    {300, 2, 4, 128, 40, 70, 33, DType::kF8},   {131, 1, 7, 96, 11, 64, 500, DType::kF8},
    {90, 1, 5, 256, 9, 3, 12, DType::kF8}};

class VotedLists {
 public:
  explicit VotedLists(const Shape& shape)
      : s_(shape),
        heads_(s_.kv_heads * s_.group),
        words_((s_.rows + 63) / 64),
        kv_(s_.rows, s_.kv_heads, s_.dim, s_.dtype, TestLayout::kHeadMajor, 71),
        q_(random_floats(s_.groups * heads_ * s_.dim, 72)),
        lse_(random_floats(s_.groups * heads_, 73, 2.0f)) {
    for (std::size_t r = 0; r + 3 < kv_.positions().size(); r += 4)
      std::swap(kv_.positions()[r], kv_.positions()[r + 2]);
    for (std::int64_t i = 0; i < s_.groups; ++i)
      limits_.push_back(static_cast<std::int32_t>((i + 1) * s_.rows / (s_.groups + 1)));
    limits_.front() = -1;
    // A device multiplies these with 16-bit keys; the others may do so, too.
    if (s_.dtype != DType::kF32) {
      for (float& x : q_) x *= kLog2Scale;
      q_ = rounded(q_, multiplied_with(s_.dtype));
      for (float& x : q_) x /= kLog2Scale;
    }
  }

  VotedListsArgs on_host(std::vector<std::uint64_t>& lists) const {
    lists.assign(static_cast<std::size_t>(s_.kv_heads * ld() * words_), ~0ull);
    return {.q = q_.data(),
            .lse = lse_.data(),
            .limits = limits_.data(),
            .num_groups = s_.groups,
            .num_heads = heads_,
            .scale = kScale,
            .kv = kv_.view(false),
            .first_row = s_.first,
            .num_rows = s_.rows - s_.first,
            .k = s_.k,
            .lists = lists.data(),
            .ld_lists = ld(),
            .list_words = words_};
  }
  VotedListsArgs on_device(TestDevice& device, std::vector<std::uint64_t>& lists) const {
    VotedListsArgs a = on_host(lists);
    a.q = device.upload(q_, "q");
    a.lse = device.upload(lse_, "lse");
    a.limits = device.upload(limits_, "limits");
    a.kv = device.upload(a.kv);
    a.lists = device.output(lists, "lists");
    const std::int64_t lists_made = s_.kv_heads * s_.groups;
    a.votes = device.output(
        std::vector<float>(static_cast<std::size_t>(lists_made * a.num_rows), 7.0f), "votes");
    a.best = device.output(
        std::vector<std::int32_t>(static_cast<std::size_t>(lists_made * std::min(s_.k, a.num_rows)),
                                  -1),
        "best");
    return a;
  }
  std::int64_t size() const { return s_.kv_heads * ld() * words_; }

 private:
  static constexpr float kScale = 0.25f, kLog2Scale = kScale * 1.4426950408889634f;
  std::int64_t ld() const { return s_.groups + 2; }
  const Shape s_;
  const std::int32_t heads_;
  const std::int64_t words_;
  PagedKv kv_;
  std::vector<float> q_, lse_;
  std::vector<std::int32_t> limits_;
};

TEST(CudaParity, VotedListsOfManyGroups) {
  for (const Shape& s : kShapes) {
    const VotedLists lists(s);
    std::vector<std::uint64_t> expected, cpu, there;
    ASSERT_OK(voted_lists_reference(lists.on_host(expected)));
    ASSERT_OK(voted_lists(lists.on_host(cpu)));
    EXPECT_EQ(cpu, expected) << "cpu head_dim " << s.dim;
    TestDevice device;
    auto launcher = device.launcher();
    const VotedListsArgs args = lists.on_device(device, there);
    ASSERT_OK(launch_voted_lists(launcher, args));
    EXPECT_EQ(device.download(args.lists, lists.size()), expected) << "cuda head_dim " << s.dim;
  }
}

TEST(CudaParity, VotedListsRefuseWhatDoesNotFit) {
  const VotedLists lists(kShapes[1]);
  std::vector<std::uint64_t> there;
  TestDevice device;
  auto launcher = device.launcher();
  const VotedListsArgs args = lists.on_device(device, there);
  VotedListsArgs bad = args;
  bad.num_heads = 2 * 17;
  EXPECT_EQ(launch_voted_lists(launcher, bad).field(), "num_heads");
  bad = args;
  bad.num_rows = 500;
  EXPECT_EQ(launch_voted_lists(launcher, bad).field(), "rows");
  bad = args;
  bad.ld_lists = 1;
  EXPECT_EQ(launch_voted_lists(launcher, bad).field(), "ld_lists");
  bad = args;
  bad.num_groups = 0;
  EXPECT_OK(launch_voted_lists(launcher, bad));
}

}  // namespace
}  // namespace quire::cuda
