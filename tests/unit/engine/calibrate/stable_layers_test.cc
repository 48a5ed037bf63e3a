#include "engine/calibrate/stable_layers.h"

#include <gtest/gtest.h>

#include <limits>

#include "engine/prefill/context_kv.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

/// Returns `blocks` alphas around 0.5 for each of `layers`. In layers from `from` on, block `beta`
/// is far lower.
std::vector<BlockStats> document(std::int32_t layers, std::int32_t blocks, std::int32_t from,
                                 std::int32_t beta) {
  std::vector<BlockStats> stats;
  for (std::int32_t l = 0; l < layers; ++l) {
    for (std::int32_t b = 0; b < blocks; ++b) {
      const float alpha = b == beta ? (l >= from ? 0.1f : 0.45f)
                                    : 0.5f + 0.01f * static_cast<float>((b + l) % 3);
      stats.push_back({alpha, 0.1f, 16 * b});
    }
  }
  return stats;
}

TEST(StableLayersTest, DefaultIsTheTailAndMistralsPublishedList) {
  EXPECT_EQ(default_stable_layers("llama", 32), (StableLayers{28, 31}));
  EXPECT_EQ(default_stable_layers("qwen2", 36), (StableLayers{31, 35}));
  EXPECT_EQ(default_stable_layers("mistral", 32), (StableLayers{27, 31}));
  EXPECT_EQ(default_stable_layers("llama", 16), (StableLayers{12, 15}));
  EXPECT_EQ(default_stable_layers("llama", 80), (StableLayers{70, 79}));
  EXPECT_EQ(default_stable_layers("llama", 3), (StableLayers{0, 2}));
  EXPECT_EQ((StableLayers{28, 31}).count(), 4);
  EXPECT_TRUE((StableLayers{28, 31}).contains(31));
  EXPECT_FALSE((StableLayers{28, 31}).contains(27));
}

TEST(StableLayersTest, CalibrationFindsTheTrailingLayersThatSingleABlockOut) {
  StableLayerCalibration calibration(16);
  for (std::int32_t beta : {3, 7, 11}) EXPECT_TRUE(calibration.add(document(16, 20, 13, beta), 20));
  EXPECT_EQ(calibration.documents(), 3);
  EXPECT_EQ(calibration.scores()[13], 3);
  EXPECT_EQ(calibration.scores()[12], 3)
      << "0.45 is an outlier as well when all others hardly differ";
  const auto layers = calibration.result();
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(*layers, (StableLayers{12, 15}));
}

TEST(StableLayersTest, ALayerBelowHalfTheHighestScoreDoesNotBegin) {
  StableLayerCalibration calibration(8);
  // Only layer 7 differs clearly; in the others the spread hides the block.
  for (int i = 0; i < 4; ++i) {
    auto stats = document(8, 20, 7, 5);
    for (std::int32_t l = 0; l < 7; ++l) {
      for (std::int32_t b = 0; b < 20; ++b)
        stats[static_cast<std::size_t>(l * 20 + b)].alpha = b == 5
                                                                ? 0.2f
                                                                : 0.3f + 0.1f * static_cast<float>(
                                                                                    b % 7);
    }
    EXPECT_TRUE(calibration.add(stats, 20));
  }
  EXPECT_EQ(calibration.scores()[6], 0);
  EXPECT_EQ(*calibration.result(), (StableLayers{7, 7}));
}

TEST(StableLayersTest, WithoutAnythingToGoByTheDefaultStays) {
  StableLayerCalibration calibration(8);
  EXPECT_EQ(calibration.result().code(), Code::kFailedPrecondition);
  EXPECT_FALSE(calibration.add(document(8, 10, 0, 3), 10))
      << "ten blocks cannot pass the 3-sigma test";
  EXPECT_FALSE(calibration.add(document(9, 20, 0, 3), 20)) << "another model";
  auto flat = document(8, 20, 99, 99);
  EXPECT_TRUE(calibration.add(flat, 20));
  for (BlockStats& b : flat) b.alpha = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(calibration.add(flat, 20));
  EXPECT_EQ(calibration.result().code(), Code::kFailedPrecondition);
}

TEST(StableLayersTest, RecordsThatAreNotWhatWasWrittenAreCorrupt) {
  const std::string good = encode_stable_layers({12, 15}, 40);
  EXPECT_EQ(good, "1 12 15 40");
  EXPECT_EQ(*decode_stable_layers(good, 16), (StableLayers{12, 15}));
  for (const char* bad : {"", "1", "1 12 15", "2 12 15 40", "1 12 15 40 ", "1 12 16 40",
                          "1 15 12 40", "1 -1 15 40", "1 a 15 40", "1  12 15 40", "1 12 15 0"}) {
    EXPECT_EQ(decode_stable_layers(bad, 16).code(), Code::kCorruption) << bad;
  }
}

TEST(StableLayersTest, AnEngineReadsWhatWasKeptForItsFingerprint) {
  const RandomModelFolder model;
  TempFolder folder;
  auto store = open_test_store(folder.path() / "store");
  Digest fingerprint;
  {
    auto engine = make_test_engine(model.path(), *store);
    EXPECT_EQ(engine->info().stable_layers, (StableLayers{0, 2}));
    const auto& digest = engine->info().fingerprint_digest;
    std::transform(digest.begin(), digest.end(), fingerprint.bytes.begin(),
                   [](std::uint8_t b) { return std::byte{b}; });
    engine->stop(std::chrono::milliseconds(0));
  }
  EXPECT_EQ(load_stable_layers(*store, fingerprint, 3).code(), Code::kNotFound);
  ASSERT_TRUE(save_stable_layers(*store, fingerprint, {2, 2}, 5).ok());
  const auto layers_of = [&](const char* kv_dtype) {
    auto engine = make_test_engine(model.path(), *store,
                                   [&](EngineOptions& o) { o.kv_dtype = kv_dtype; });
    const StableLayers layers = engine->info().stable_layers;
    engine->stop(std::chrono::milliseconds(0));
    return layers;
  };
  EXPECT_EQ(layers_of("f16"), (StableLayers{2, 2}));
  EXPECT_EQ(layers_of("f32"), (StableLayers{0, 2})) << "another fingerprint";
  ASSERT_TRUE(save_stable_layers(*store, fingerprint, {2, 7}, 5).ok());
  EXPECT_EQ(layers_of("f16"), (StableLayers{0, 2})) << "a record outside the model is ignored";
}

}  // namespace
}  // namespace quire::testing
