// Reference and CUDA (emulated) agree on sampling a token, given a uniform number.
#include "kernels/cuda/choice/sampling.cuh"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/choice/topk.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Draw {
  float temperature;
  std::int32_t top_k;
  float top_p, min_p;
  double uniform;
};

/// Returns the probability of every id as args.h defines it, in f64; empty where the largest logit
/// is taken directly.
std::vector<double> distribution(const std::vector<float>& logits, const Draw& d) {
  const auto order = top_k_reference(logits, static_cast<std::int64_t>(logits.size()));
  const float top = logits[static_cast<std::size_t>(order[0])];
  if (d.temperature <= 0 || !std::isfinite(top)) return {};
  std::vector<double> out(logits.size());
  std::size_t kept = d.top_k > 0
                         ? std::min<std::size_t>(static_cast<std::size_t>(d.top_k), order.size())
                         : order.size();
  const auto weight = [&](std::int32_t id) {
    const float x = logits[static_cast<std::size_t>(id)];
    return std::isnan(x) ? 0.0 : std::exp((double{x} - top) / d.temperature);
  };
  double total = 0, reached = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weight(order[i]);
  for (std::size_t i = 0; i < kept; ++i) {
    if (d.top_p < 1 && reached >= total * d.top_p) break;
    const double w = weight(order[i]);
    reached += w;
    out[static_cast<std::size_t>(order[i])] = w < d.min_p ? 0 : w;
  }
  const double sum = std::accumulate(out.begin(), out.end(), 0.0);
  for (double& p : out) p /= sum;
  return out;
}

/// Returns the token as args.h defines it, with the integer weights of the kernel. On a GPU the
/// last bit of an exponential may differ, which can move a token at a border.
std::int32_t exact_token(const std::vector<float>& logits, const Draw& d) {
  const auto order = top_k_reference(logits, static_cast<std::int64_t>(logits.size()));
  const float top = logits[static_cast<std::size_t>(order[0])], scale = 1.0f / d.temperature;
  const auto share = [&](std::int32_t id) {
    const float x = logits[static_cast<std::size_t>(id)];
    return x > -kInfinity ? std::exp((x - top) * scale) : 0.0f;
  };
  const auto weight = [&](std::int32_t id) {
    return static_cast<std::uint64_t>(share(id) * 1099511627776.0f + 0.5f);
  };
  std::size_t kept = order.size();
  if (d.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(d.top_k));
  if (d.top_p < 1) {
    std::uint64_t total = 0, reached = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weight(order[i]);
    const auto wanted = static_cast<std::uint64_t>(
        std::ceil(static_cast<double>(total) * static_cast<double>(d.top_p)));
    std::size_t i = 0;
    while (i < kept && reached < wanted) reached += weight(order[i++]);
    kept = i;
  }
  std::vector<std::int32_t> ids(order.begin(), order.begin() + static_cast<std::int64_t>(kept));
  std::erase_if(ids, [&](std::int32_t id) { return share(id) < d.min_p; });
  std::sort(ids.begin(), ids.end());
  std::uint64_t total = 0, passed = 0;
  for (const std::int32_t id : ids) total += weight(id);
  const auto point = std::min(static_cast<std::uint64_t>(d.uniform * static_cast<double>(total)),
                              total - 1);
  for (const std::int32_t id : ids) {
    passed += weight(id);
    if (point < passed) return id;
  }
  return -1;
}

/// Returns scratch memory with every byte set to `fill`.
SampleRowScratch* scratch_for(TestDevice& device, std::size_t rows, int fill) {
  std::vector<SampleRowScratch> scratch(rows);
  std::memset(static_cast<void*>(scratch.data()), fill, rows * sizeof(SampleRowScratch));
  return device.output(scratch, "scratch");
}

/// Draws with one thread block per row, and checks that as many as `parts` say draw the same, over
/// whatever lies in the scratch memory. `listed` gets how many logits the last of these listed.
std::vector<std::int32_t> on_device(const std::vector<float>& logits, std::int64_t n,
                                    const std::vector<Draw>& draws,
                                    const std::vector<std::int32_t>& parts = {2},
                                    std::vector<std::uint32_t>* listed = nullptr) {
  std::vector<float> temperature, top_p, min_p;
  std::vector<double> uniform;
  std::vector<std::int32_t> top_k;
  for (const Draw& d : draws) {
    temperature.push_back(d.temperature);
    top_k.push_back(d.top_k);
    top_p.push_back(d.top_p);
    min_p.push_back(d.min_p);
    uniform.push_back(d.uniform);
  }
  TestDevice device;
  auto launcher = device.launcher();
  const auto rows = static_cast<std::int64_t>(draws.size());
  const std::vector<std::int32_t> none(draws.size(), -1);
  SampleArgs args{device.upload(logits, "logits"),
                  rows,
                  n,
                  device.upload(temperature, "temperature"),
                  device.upload(top_k, "top_k"),
                  device.upload(top_p, "top_p"),
                  device.upload(min_p, "min_p"),
                  device.upload(uniform, "uniform"),
                  device.output(none, "out")};
  const Status status = launch_sample(launcher, args);
  EXPECT_TRUE(status.ok()) << status.to_string();
  const auto alone = device.download(args.out, rows);
  // A number of listed logits that starts at 0 is right once
  args.scratch = scratch_for(device, draws.size(), parts.size() > 1 ? 0 : 0xa5);
  for (const std::int32_t p : parts) {
    args.parts = p;
    args.out = device.output(none, "out of parts");
    const Status shared = launch_sample(launcher, args);
    EXPECT_TRUE(shared.ok()) << shared.to_string();
    EXPECT_EQ(device.download(args.out, rows), alone) << p << " parts of " << n;
  }
  if (listed != nullptr) {
    for (const SampleRowScratch& row : device.download(args.scratch, rows))
      listed->push_back(row.num_listed);
  }
  return alone;
}

TEST(CudaParity, ATokenIsDrawnWhereTheRunningSumPassesTheUniformNumber) {
  for (const std::int64_t n : {1, 7, 290}) {
    std::vector<Draw> draws;
    std::vector<float> logits;
    std::mt19937 rng(5);
    for (const float temperature : {0.3f, 1.0f, 4.0f}) {
      for (const std::int32_t top_k : {0, 1, 5, 1000}) {
        for (const float top_p : {1.0f, 0.9f, 0.2f, 1e-6f}) {
          draws.push_back({temperature, top_k, top_p, rng() % 3 == 0 ? 0.3f : 0.0f,
                           static_cast<double>(rng() % 1000) / 1000});
          const auto row = random_floats(n, static_cast<std::uint32_t>(draws.size()), 2.0f);
          for (std::int64_t i = 0; i < n; ++i)
            logits.push_back(i > 0 && rng() % 17 == 0 ? (rng() % 2 == 0 ? kNan : -kInfinity)
                             : rng() % 9 == 0         ? 1.0f
                                                      : row[static_cast<std::size_t>(i)]);
        }
      }
    }
    const auto drawn = on_device(logits, n, draws);
    for (std::size_t r = 0; r < draws.size(); ++r) {
      const std::vector<float> row(logits.begin() + static_cast<std::int64_t>(r) * n,
                                   logits.begin() + static_cast<std::int64_t>(r + 1) * n);
      const auto p = distribution(row, draws[r]);
      ASSERT_TRUE(drawn[r] >= 0 && drawn[r] < n) << drawn[r];
      const auto id = static_cast<std::size_t>(drawn[r]);
      EXPECT_GT(p[id], 0.0) << "n " << n << " draw " << r << " is out of what is left";
      const double before = std::accumulate(p.begin(), p.begin() + drawn[r], 0.0);
      // The uniform number falls into the token's share of [0, 1), up to the rounding of weights.
      EXPECT_LE(before, draws[r].uniform + 1e-5) << "n " << n << " draw " << r;
      EXPECT_GE(before + p[id], draws[r].uniform - 1e-5) << "n " << n << " draw " << r;
    }
  }
}

TEST(CudaParity, TokensAreThoseOfWholeWeights) {
  // More ids than are collected at once, whose parts of the draw are divided twice. Close logits
  // need every step of the search for a cut; equal ones need ties; far ones lie in the last bin.
  enum class Kind { kPlain, kClose, kTies, kFar };
  const std::int64_t n = 8500;
  std::vector<Draw> draws;
  std::vector<float> logits;
  std::mt19937 rng(77);
  for (const Kind kind : {Kind::kPlain, Kind::kClose, Kind::kTies, Kind::kFar}) {
    const float spread = kind == Kind::kClose ? 1e-5f : kind == Kind::kFar ? 60.0f : 2.5f;
    for (const auto& [top_k, top_p, min_p] :
         {std::tuple{0, 0.95f, 0.0f}, {900, 0.4f, 0.0f}, {900, 1.0f, 0.01f}}) {
      draws.push_back({kind == Kind::kFar ? 1.7f : 0.8f, top_k, top_p, min_p,
                       static_cast<double>(rng() % 100000) / 100000});
      for (const float x : random_floats(n, static_cast<std::uint32_t>(draws.size()), spread))
        logits.push_back(kind == Kind::kTies ? std::round(x * 2) / 2 : x);
    }
  }
  const auto drawn = on_device(logits, n, draws);
  int others = 0;
  for (std::size_t r = 0; r < draws.size(); ++r) {
    const std::vector<float> row(logits.begin() + static_cast<std::int64_t>(r) * n,
                                 logits.begin() + static_cast<std::int64_t>(r + 1) * n);
    const std::int32_t expected = exact_token(row, draws[r]);
    if (drawn[r] != expected) ++others;
#ifndef __CUDACC__
    EXPECT_EQ(drawn[r], expected) << r;
#endif
  }
  EXPECT_LE(others, 2) << "of " << draws.size();
}

TEST(CudaParity, TokensDoNotDependOnHowManyBlocksShareARow) {
  // Parts end at multiples of 32 ids: some have fewer than others, or none. Cuts lie in bins of few
  // logits, of so many that they are not listed, and in the last bin.
  enum class Kind { kPlain, kClose, kTies, kHalfIsNothing, kFar };
  for (const std::int64_t n : {1, 33, 65, 1025, 8500}) {
    std::vector<Draw> draws;
    std::vector<float> logits;
    std::mt19937 rng(static_cast<std::uint32_t>(n));
    const auto all = static_cast<std::int32_t>(n);
    for (const Kind kind :
         {Kind::kPlain, Kind::kClose, Kind::kTies, Kind::kHalfIsNothing, Kind::kFar}) {
      const float spread = kind == Kind::kClose ? 1e-5f : kind == Kind::kFar ? 60.0f : 2.5f;
      for (const auto& [temperature, top_k, top_p, min_p] :
           {std::tuple{1.0f, 0, 0.95f, 0.0f}, std::tuple{0.7f, all, 0x1.fffffep-1f, 0.0f},
            std::tuple{1.3f, (all + 1) / 2, 0.6f, 0.02f}, std::tuple{1e-39f, all - 1, 0.5f, 0.0f},
            std::tuple{2.0f, 0, 1.0f, 0.3f}, std::tuple{0.0f, 3, 0.5f, 0.5f}}) {
        // As with fewer
        if (n > 8192 && kind != Kind::kPlain && kind != Kind::kClose) continue;
        draws.push_back(
            {temperature, top_k, top_p, min_p, static_cast<double>(rng() % 100000) / 100000});
        auto row = random_floats(n, static_cast<std::uint32_t>(draws.size()), spread);
        for (std::int64_t i = 0; i < n; ++i) {
          float& x = row[static_cast<std::size_t>(i)];
          if (kind == Kind::kTies) x = std::round(x * 2) / 2;
          if (kind == Kind::kHalfIsNothing && i < n / 2) x = i % 3 == 0 ? kNan : -kInfinity;
        }
        logits.insert(logits.end(), row.begin(), row.end());
      }
    }
    std::vector<std::uint32_t> listed;
    const auto drawn = on_device(logits, n, draws, {2, 5}, &listed);
    for (std::size_t r = 0; r < draws.size(); ++r)
      EXPECT_TRUE(drawn[r] >= 0 && drawn[r] < n) << "n " << n << " draw " << r;
    if (n < 8500) continue;
    EXPECT_GT(listed[0], 0u) << "a bin of plain logits";
    EXPECT_LT(listed[0], 200u) << "a bin of plain logits";
    EXPECT_EQ(listed[6], 8500u) << "close ones share a bin, more than a list has room for";
    EXPECT_EQ(listed[4], 0u) << "nothing is cut";
  }
  const std::vector<Draw> draws(3, {1.0f, 40, 0.9f, 0.0f, 0.7});
  for (const std::int64_t n : {40, 1025})
    on_device(random_floats(3 * n, 11, 2.5f), n, draws, {kSampleParts});
}

TEST(CudaParity, TopPBehindTopKCutsWhereItsBinEndsOrBegins) {
  // Logits at steps of a bin's width, several to a bin: top-k's cut divides a bin, and what it
  // keeps of that bin decides in which bin top-p's cut is.
  const std::int64_t n = 700;
  std::vector<Draw> draws;
  std::vector<float> logits;
  for (const std::int32_t top_k : {1, 4, 8, 250, 699}) {
    for (const float top_p : {0.02f, 0.5f, 0.8f, 0.9999f}) {
      draws.push_back({1.0f, top_k, top_p, 0, 0.999});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t place = i * 37 % n;  // all of them, in another order
        logits.push_back(3 - static_cast<float>(place / 5) / 32 -
                         static_cast<float>(place % 5) / 1024);
      }
    }
  }
  const auto drawn = on_device(logits, n, draws, {3});
#ifndef __CUDACC__
  for (std::size_t r = 0; r < draws.size(); ++r)
    EXPECT_EQ(drawn[r],
              exact_token(std::vector<float>(logits.begin(), logits.begin() + n), draws[r]))
        << r;
#endif
}

TEST(CudaParity, AFewRowsAreSharedByAsManyBlocksAsADeviceHasRoomFor) {
  DeviceProperties device;
  device.multiprocessors = 132;
  EXPECT_EQ(best_sample_parts(device, 1, 128256), 31);
  EXPECT_EQ(best_sample_parts(device, 1, 1 << 20), 32) << "the most there may be";
  EXPECT_EQ(best_sample_parts(device, 1, 8191), 1) << "two parts of less than 4096";
  EXPECT_EQ(best_sample_parts(device, 1, 8192), 2);
  EXPECT_EQ(best_sample_parts(device, 32, 128256), 9);
  EXPECT_EQ(best_sample_parts(device, 131, 128256), 3);
  EXPECT_EQ(best_sample_parts(device, 132, 128256), 1) << "a block for each multiprocessor";
  EXPECT_EQ(best_sample_parts(device, 1000, 128256), 1);
  EXPECT_EQ(best_sample_parts(device, 0, 128256), 1);
  EXPECT_GT(sample_scratch_bytes(128), 0);
  EXPECT_EQ(sample_scratch_bytes(129), 0);
}

TEST(CudaParity, SharesOfManyDrawsAreThoseOfTheDistribution) {
  const std::int64_t n = 12, count = 80;
  const auto one = random_floats(n, 3);
  const Draw shape{0.8f, 8, 0.95f, 0.02f, 0};
  const auto p = distribution(one, shape);
  std::vector<float> logits;
  std::vector<Draw> draws;
  for (std::int64_t i = 0; i < count; ++i) {
    logits.insert(logits.end(), one.begin(), one.end());
    draws.push_back(shape);
    // The numbers are evenly spaced, so counts are exact to one.
    draws.back().uniform = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
  }
  std::vector<int> seen(static_cast<std::size_t>(n));
  for (const std::int32_t id : on_device(logits, n, draws, {}))
    ++seen[static_cast<std::size_t>(id)];
  for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_NEAR(seen[i], p[i] * count, 1.01) << i;
}

TEST(CudaParity, EdgesOfSampling) {
  const std::int64_t n = 300;
  std::vector<float> plain = random_floats(n, 9), nothing(static_cast<std::size_t>(n), kNan),
                     low(static_cast<std::size_t>(n), -kInfinity), high = plain,
                     ties(static_cast<std::size_t>(n), 2.0f);
  high[70] = high[290] = kInfinity;
  plain[200] = plain[290] = 50.0f;
  std::vector<float> logits;
  for (const auto* row :
       {&plain, &nothing, &low, &high, &ties, &ties, &ties, &plain, &plain, &plain})
    logits.insert(logits.end(), row->begin(), row->end());
  const auto drawn = on_device(logits, n,
                               {{0, 3, 0.5f, 0.5f, 0.9f},
                                {1, 0, 1, 0, 0.5f},
                                {1, 0, 0.5f, 0, 0.5f},
                                {1, 0, 1, 0, 0.99f},
                                {1, 3, 1, 0, 0.99999f},
                                {1, 0, 0.01f, 0, 0.99999f},
                                {1, 0, 1, 1, 0.5f},
                                {1e-39f, 0, 1, 0, 0.2f},
                                {1e-39f, 0, 1, 0.5f, 0.9f},
                                {1e-39f, 5, 0.5f, 0, 0.9f}});
  EXPECT_EQ(drawn[0], 200) << "the first of the largest";
  EXPECT_EQ(drawn[1], 0);
  EXPECT_EQ(drawn[2], 0);
  EXPECT_EQ(drawn[3], 70);
  EXPECT_EQ(drawn[4], 2) << "ties of top-k go to lower ids";
  EXPECT_EQ(drawn[5], 2) << "three of 300 equal ones weigh a hundredth";
  EXPECT_EQ(drawn[6], 150);
  // 1 / temperature is infinite, and only the two largest weigh anything.
  EXPECT_EQ(drawn[7], 200);
  EXPECT_EQ(drawn[8], 290);
  EXPECT_EQ(drawn[9], 200);
  TestDevice device;
  auto launcher = device.launcher();
  SampleArgs wrong{nullptr, 1, 0, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  EXPECT_EQ(launch_sample(launcher, wrong).field(), "n");
  wrong.n = 1;
  wrong.parts = kSampleParts + 1;
  EXPECT_EQ(launch_sample(launcher, wrong).field(), "parts");
  wrong.parts = 2;
  EXPECT_EQ(launch_sample(launcher, wrong).field(), "scratch");
}

}  // namespace
}  // namespace quire::cuda
