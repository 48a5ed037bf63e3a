/// The device memory that choosing takes is counted and never exceeds its announced bound. A
/// request whose part is too small is refused by name.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/retrieve/choosing_memory.h"
#include "engine/retrieve/head/retrieval_head.h"
#include "engine/retrieve/retriever.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/head_files.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

TEST(ChoosingMemoryTest, CountsInThePoolAndInItself) {
  const auto ops = simt::make_emulated_ops();
  const auto compute = make_device_compute(ops);
  DevicePool pool(1000);
  const auto memory = std::make_shared<ChoosingMemory>(pool, compute->memory());
  const std::int64_t before = ops->bytes_in_use();
  {
    ComputeBuffer<float> first, second;
    ASSERT_TRUE(first.reserve(memory, 100).ok());
    EXPECT_EQ(pool.bytes_in_use(), 400);
    const Status full = second.reserve(memory, 151);
    EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.to_string();
    EXPECT_EQ(pool.bytes_in_use(), 400) << "nothing is left of what failed";
    ASSERT_TRUE(second.reserve(memory, 150).ok());
    EXPECT_EQ(pool.bytes_in_use(), 1000);
    EXPECT_GT(ops->bytes_in_use(), before);
  }
  EXPECT_EQ(pool.bytes_in_use(), 0);
  EXPECT_EQ(memory->peak_bytes(), 1000);
  ops->fail_allocation(0);
  ComputeBuffer<float> failed;
  EXPECT_FALSE(failed.reserve(memory, 10).ok());
  EXPECT_EQ(pool.bytes_in_use(), 0) << "the device's refusal is not counted";
}

/// The values are worked out by hand from what each keeps per row: 32 layers, 32 query heads, 8 KV
/// heads of 128 channels, 65,536 rows.
TEST(ChoosingNeedTest, IsWhatLargeModelsWouldTake) {
  const RetrieveShape shape{
      .num_layers = 32, .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .num_contexts = 8};
  constexpr double kRows = 65536, kMiB = 1 << 20;
  const auto need = [&](const char* name) {
    return static_cast<double>(choosing_bytes(shape, **retrievers().make(name), shape.num_contexts,
                                              static_cast<std::int64_t>(kRows))) /
           kMiB;
  };
  const auto bounds = [&](double page, double layers) {
    return kRows / page * 8 * 2 * 128 * 2 * layers / kMiB;
  };
  const std::map<std::string, double> least = {
      {"quest", bounds(16, 30)},
      {"freekv", bounds(32, 32)},
      {"arkvale", bounds(32, 31)},
      {"shadowkv", bounds(8, 31)},
      {"raas", bounds(16, 31)},
      {"flat", kRows * (32 + 8) * 4 / kMiB},
      {"ctkvr", 32 * (32 * 512 * 128 * 2 + 8 * 512 * kRows / 8) / kMiB}};
  for (const auto& [name, bytes] : least) {
    EXPECT_GE(need(name.c_str()), bytes) << name;
    EXPECT_LE(need(name.c_str()), 1.35 * bytes) << name << ": room to grow, scores, lists";
  }
  for (const char* name : {"dense", "magicpig", "specontext"})
    EXPECT_EQ(need(name), 0) << name << ": nothing without a head";
}

class DeviceChoosingTest : public DeviceSideTest {
 protected:
  DeviceChoosingTest() { head_path_ = head_.path(); }
  static constexpr std::initializer_list<std::size_t> kShort = {45, 40};
  static std::function<void(QueryRequest&)> by(const std::string& name) {
    return [name](QueryRequest& r) {
      r.cache.decode = name;
      Options options = small_budget("64");
      options.erase("decode_resident");
      options["decode_head"] = "embed";
      r.cache.options = PlugOptions(options_of(name, options));
    };
  }
  const HeadFolder head_;
  const RandomModelFolder model_;
};

TEST_F(DeviceChoosingTest, TakesNoMoreThanWasSaid) {
  const auto cpu = side(model_.path(), "cpu", nullptr, kShort),
             device = side(model_.path(), "device", make_device_compute(simt::make_emulated_ops()),
                           kShort);
  const auto head_model = std::move(*load_model(model_.path(), {.weights = WeightFormat::kF32}));
  const auto head = std::move(*RetrievalHead::load(head_.path(), *head_model));
  const ModelConfig& c = head_model->config();
  const RetrieveShape shape{.num_layers = c.num_layers,
                            .num_heads = c.num_heads,
                            .num_kv_heads = c.num_kv_heads,
                            .head_dim = c.head_dim,
                            .num_contexts = 2,
                            .head = head.get()};
  std::vector<std::pair<std::string, bool>> all = {{"freekv", true}, {"arkvale", true}};
  for (const std::string& name : retrievers().names()) all.emplace_back(name, false);
  for (const auto& [name, leaves] : all) {
    SCOPED_TRACE(name + (leaves ? " in slots" : ""));
    QueryRequest r = request(*device, "reuse", 9);
    by(name)(r);
    if (leaves) r.cache.options = PlugOptions(options_of(name, small_budget("64")));
    const std::int64_t rows = static_cast<std::int64_t>(r.prefix_ids.size() + r.suffix_ids.size()) +
                              45 + 40 + 9;
    const std::int64_t said = choosing_bytes(shape, **retrievers().make(name, r.cache.options), 2,
                                             rows);
    const Outcome got = run_query(*device->engine, std::move(r));
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_LE(got.stats.retrieve.choosing_bytes, said);
    EXPECT_EQ(got.stats.retrieve.choosing_bytes > 0, name != "dense" && name != "magicpig");
    EXPECT_EQ(ask(*cpu, "reuse", 9, by(name)).stats.retrieve.choosing_bytes, 0)
        << "the host's memory is the host's";
  }
}

TEST_F(DeviceChoosingTest, WhatAPartCannotHoldIsRefusedByNameAndAutoDoesNotTakeIt) {
  edit_options_ = [](EngineOptions& o) { o.device_cache_bytes = 8 << 10; };
  const auto device = side(model_.path(), "small", make_device_compute(simt::make_emulated_ops()),
                           kShort);
  for (const char* name : {"quest", "flat", "specontext"}) {
    QueryRequest r = request(*device, "reuse", 4);
    by(name)(r);
    const Outcome refused = run_query(*device->engine, std::move(r));
    EXPECT_EQ(refused.stats.most_cache_bytes, 0) << "before anything is computed";
    EXPECT_EQ(refused.status.code(), Code::kInvalidArgument) << refused.status.to_string();
    EXPECT_EQ(refused.status.field(), "cache.decode");
    EXPECT_NE(refused.status.message().find("model.device_cache_bytes"), std::string::npos)
        << refused.status.to_string();
  }
  const Outcome chosen = ask(*device, "reuse", 4, [](QueryRequest& r) {
    r.cache.decode = "auto";
    r.cache.options = PlugOptions(Options{{"decode_budget", "72"}});
  });
  EXPECT_EQ(chosen.stats.retrieve.sparse_steps, 0);
}

}  // namespace
}  // namespace quire::testing
