/// Retrieval of decode steps on a device: it chooses the CPU's rows where the scores are, and no
/// layer waits for the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/compress/compressor.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/pages/paged.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/harness/random_row.h"

namespace quire::testing {
namespace {

using cuda::OpCode;
using Options = std::map<std::string, std::string, std::less<>>;

/// The prompt is a few tokens longer than the budgets here.
constexpr std::initializer_list<std::size_t> kShort = {45, 40};

bool knows(const std::string& retriever, std::string_view option) {
  return std::ranges::any_of(retrievers().options(retriever),
                             [&](const PlugOption& o) { return o.name == option; });
}

class DeviceRetrieveTest : public DeviceSideTest {
 protected:
  DeviceRetrieveTest() { head_path_ = head_.path(); }
  const HeadFolder head_;
};

/// Retrievers that choose on the device wait in no layer; all their layers are sparse.
TEST_F(DeviceRetrieveTest, WhatChoosesByItselfWaitsForNoLayer) {
  TwoDepths depths = two_depths(kShort);
  struct Choosing {
    std::string name;
    OpCode used;
    bool leaves = false;
  };
  for (const Choosing& one :
       {Choosing{"quest", OpCode::kChoosePages}, Choosing{"arkvale", OpCode::kChoosePages},
        Choosing{"freekv", OpCode::kChoosePages}, Choosing{"arkvale", OpCode::kFillSlots, true},
        Choosing{"freekv", OpCode::kFillSlots, true}, Choosing{"flat", OpCode::kTopK},
        Choosing{"specontext", OpCode::kKeyProducts}}) {
    const std::string& name = one.name;
    SCOPED_TRACE(name + (one.leaves ? " in slots" : ""));
    const auto edit = [&](QueryRequest& r, std::int32_t) {
      r.cache.decode = name;
      Options options = small_budget("64");
      options["decode_dense_layers"] = "0";
      // Otherwise the states of a prompt are read in every layer that differs.
      options["decode_head"] = "embed";
      if (!one.leaves) options.erase("decode_resident");
      r.cache.options = PlugOptions(options_of(name, options));
    };
    expect_no_wait_for_a_layer(depths, "reuse", 3, one.used, edit);
  }
}

/// The wait of the last layer does not depend on the number of layers before it, which attend to
/// everything.
TEST_F(DeviceRetrieveTest, DenseLayersOfAnyRetrieverWaitForNobody) {
  TwoDepths depths = two_depths(kShort);
  for (const std::string& name : headless_retrievers()) {
    if (!knows(name, "decode_dense_layers")) continue;
    SCOPED_TRACE(name);
    const auto edit = [&](QueryRequest& r, std::int32_t layers) {
      r.cache.decode = name;
      Options options = small_budget("64");
      options["decode_dense_layers"] = std::to_string(layers - 1);
      options.erase("decode_resident");
      r.cache.options = PlugOptions(options_of(name, options));
    };
    expect_no_wait_for_a_layer(depths, "reuse", 3, OpCode::kDecodeAttention, edit);
  }
}

TEST_F(DeviceRetrieveTest, EveryRetrieverAnswersAsOnTheCpuOnTheDeviceAndInSlots) {
  const RandomModelFolder model;
  const auto ops = simt::make_emulated_ops();
  const auto cpu = side(model.path(), "cpu", nullptr, kShort),
             device = side(model.path(), "device", make_device_compute(ops), kShort);
  for (const std::string& name : retrievers().names()) {
    for (const char* residency : {"fit", "none"}) {
      if (residency == std::string("none") && !knows(name, "decode_resident")) continue;
      for (const char* rerank : {"1", "2"}) {
        // The option does not exist or means something else there.
        if (rerank == std::string("2") && (name == "ctkvr" || !knows(name, "decode_rerank")))
          continue;
        SCOPED_TRACE(name + " " + residency + " rerank " + rerank);
        const auto edit = [&](QueryRequest& r) {
          r.cache.decode = name;
          Options options = small_budget("64");
          if (residency == std::string("fit")) options.erase("decode_resident");
          if (name != "ctkvr") options["decode_rerank"] = rerank;
          r.cache.options = PlugOptions(options_of(name, options));
        };
        const std::int64_t products = ops->runs(OpCode::kKeyProducts),
                           lists = ops->runs(OpCode::kVotedLists);
        const Outcome got = ask(*device, "reuse", 6, edit), expected = ask(*cpu, "reuse", 6, edit);
        EXPECT_EQ(got.ids, expected.ids);
        EXPECT_GT(expected.stats.retrieve.sparse_steps, name == "dense" ? -1 : 0);
        const bool multiplies = name == "flat" || name == "ctkvr" || name == "specontext";
        EXPECT_EQ(ops->runs(OpCode::kKeyProducts) > products, multiplies)
            << "rows, centroids, keys of the head";
        EXPECT_EQ(ops->runs(OpCode::kVotedLists) > lists, name == "ctkvr");
        EXPECT_EQ(got.stats.retrieve.sparse_steps, expected.stats.retrieve.sparse_steps);
        EXPECT_EQ(got.stats.retrieve.selections, expected.stats.retrieve.selections);
      }
    }
  }
}

/// Where votes find no room on the device, the host makes the lists once the layers have left.
TEST_F(DeviceRetrieveTest, ListsThatFindNoRoomOnTheDeviceAreMadeByTheHost) {
  const RandomModelFolder model;
  const auto ops = simt::make_emulated_ops();
  const auto cpu = side(model.path(), "cpu", nullptr, kShort),
             device = side(model.path(), "device", make_device_compute(ops), kShort);
  const auto edit = [](QueryRequest& r) {
    r.cache.decode = "ctkvr";
    r.cache.options = PlugOptions(options_of("ctkvr", small_budget("64")));
  };
  const Outcome expected = ask(*cpu, "reuse", 2, edit);
  std::int64_t before = ops->runs(OpCode::kVotedLists);
  EXPECT_EQ(ask(*device, "reuse", 2, edit).ids, expected.ids);
  const std::int64_t all = ops->runs(OpCode::kVotedLists) - before;
  int by_host = 0;
  for (std::int64_t n = 0; n < 40; ++n) {
    before = ops->runs(OpCode::kVotedLists);
    ops->fail_allocation(n);
    QueryRequest r = request(*device, "reuse", 2);
    edit(r);
    const Outcome got = run_query(*device->engine, std::move(r));
    ops->fail_allocation(-1);
    if (!got.status.ok()) {
      EXPECT_EQ(got.status.code(), Code::kResourceExhausted) << got.status.to_string();
      continue;
    }
    EXPECT_EQ(got.ids, expected.ids) << n;
    by_host += ops->runs(OpCode::kVotedLists) - before < all;
  }
  EXPECT_GT(by_host, 0);
}

/// If a choice serves several steps, heads choose only where a choice is due or a query turned.
TEST_F(DeviceRetrieveTest, HeadsChooseWhereAChoiceIsDue) {
  const RandomModelFolder model;
  const auto ops = simt::make_emulated_ops();
  const auto cpu = side(model.path(), "cpu", nullptr, kShort),
             device = side(model.path(), "device", make_device_compute(ops), kShort);
  for (const char* tau : {"-1", "0.8", "2"}) {
    std::int64_t selections[2] = {};
    for (const int reuse : {1, 4}) {
      SCOPED_TRACE(std::string("tau ") + tau + ", reuse " + std::to_string(reuse));
      const auto edit = [&](QueryRequest& r) {
        r.cache.decode = "freekv";
        Options options = small_budget("64");
        options.erase("decode_resident");
        options["decode_tau"] = tau;
        options["decode_reuse"] = std::to_string(reuse);
        r.cache.options = PlugOptions(options_of("freekv", options));
      };
      const std::int64_t before = ops->runs(OpCode::kChoosePages);
      const RetrieveStats got = ask(*device, "reuse", 9, edit).stats.retrieve,
                          expected = ask(*cpu, "reuse", 9, edit).stats.retrieve;
      EXPECT_EQ(ops->runs(OpCode::kChoosePages) - before, got.sparse_steps);
      EXPECT_EQ(got.sparse_steps, expected.sparse_steps);
      EXPECT_EQ(got.selections, expected.selections);
      EXPECT_EQ(got.heads_corrected, expected.heads_corrected);
      EXPECT_EQ(got.heads_kept, expected.heads_kept);
      EXPECT_EQ(got.heads_corrected > 0, tau != std::string("-1"));
      selections[reuse == 4] = got.selections;
      if (reuse == 1) {
        EXPECT_EQ(got.selections, got.sparse_steps);
      }
    }
    EXPECT_LE(selections[1], selections[0]);
    EXPECT_TRUE(selections[1] < selections[0] || tau != std::string("-1"))
        << "queries that turn again and again are all there is";
  }
}

/// Pages of a growing cache, chosen by a retriever on the host and one on a device with the same
/// queries.
class ChosenPagesTest : public ::testing::Test {
 protected:
  static constexpr std::int32_t kLayers = 2, kHeads = 6, kKvHeads = 2, kDim = 16, kPrompt = 203;

  static const RopeTable& rope() {
    static const RopeTable table = [] {
      RopeConfig config;
      config.head_dim = config.rotary_dim = kDim;
      return std::move(*RopeTable::build(config, 512));
    }();
    return table;
  }

  struct Decoding {
    Decoding(const std::string& name, const Options& given, std::shared_ptr<Compute> who,
             DType dtype, std::int64_t device_bytes = 0, const RetainedRows* retained = nullptr)
        : compute(std::move(who)),
          slots(device_bytes, compute->memory()),
          pool(PageFormat{kKvHeads, kDim, dtype}, 0, compute->memory(),
               compute->on_host() ? 0 : 1 << 24),
          cache(pool, kLayers),
          retriever(std::move(*retrievers().make(name, PlugOptions(options_of(name, given))))),
          registered(std::move(*compute->register_rope(rope()))) {
      for (std::int32_t p = 0; p < kPrompt; ++p) add_row(p);
      SequenceContext context;
      AssembledPrompt assembled;
      context.cache = &cache;
      assembled.contexts = contexts;
      assembled.retained = retained;
      context.device = &slots;
      context.compute = compute.get();
      assembled.num_tokens = kPrompt;
      context.num_layers = kLayers;
      context.num_heads = kHeads;
      context.num_kv_heads = kKvHeads;
      context.head_dim = kDim;
      EXPECT_TRUE(prepare_whole(*retriever, context, assembled).ok());
      EXPECT_TRUE(query.reserve(compute->memory(), kHeads * kDim).ok());
      EXPECT_TRUE(out.reserve(compute->memory(), kHeads * kDim).ok());
    }
    ~Decoding() { retriever->synchronize(); }
    void add_row(std::int32_t position) {
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        EXPECT_TRUE(cache.add_rows(layer, std::span(&position, 1)).ok());
        const auto raw = random_row(static_cast<std::uint32_t>(position * kLayers + layer),
                                    kKvHeads * 2 * kDim);
        const auto row = static_cast<std::int32_t>(cache.num_rows(layer) - 1);
        const StoredRows stored{{raw.data(), 1, DType::kF32, 2 * kDim * 4, kDim * 4, kDim * 4},
                                {&position, 1},
                                {&row, 1}};
        EXPECT_TRUE(
            compute->kv().place(rope(), *cache.writable(layer, {&row, 1}), {&stored, 1}).ok());
      }
    }
    /// Queries drift, and turn away in every fifth step.
    std::vector<float> query_of(std::int32_t layer, int n) const {
      std::vector<float> q(kHeads * kDim, 0.0f);
      for (const int by : {n / 5, 9 + n}) {
        const auto one = random_row(static_cast<std::uint32_t>(9000 + layer + 10 * by),
                                    kHeads * kDim);
        for (std::size_t i = 0; i < q.size(); ++i) q[i] += (by == n / 5 ? 1.0f : drift) * one[i];
      }
      return q;
    }
    /// Returns the layers' outputs.
    std::vector<float> token(int n) {
      const auto position = static_cast<std::int32_t>(cache.num_rows(0));
      EXPECT_TRUE(retriever->begin_step(0, position).ok());
      add_row(position);
      std::vector<float> outs;
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        std::ranges::copy(query_of(layer, n), query.data());
        RetrieveStep step{layer, query.data(), position,    &cache,       kHeads,
                          kDim,  out.data(),   DType::kF32, compute.get()};
        const Status s = retriever->attend(step);
        EXPECT_TRUE(s.ok()) << s.to_string();
        const Status ran = compute->synchronize();
        EXPECT_TRUE(ran.ok()) << ran.to_string();
        outs.insert(outs.end(), out.data(), out.data() + kHeads * kDim);
      }
      return outs;
    }
    PagedRetriever& paged() { return dynamic_cast<PagedRetriever&>(*retriever); }

    std::shared_ptr<Compute> compute;
    DevicePool slots;
    PagePool pool;
    WorkingCache cache;
    std::vector<ContextRows> contexts = {{1, 70}, {71, 100}};
    std::unique_ptr<Retriever> retriever;
    std::shared_ptr<const void> registered;  ///< the rotary table, on a device
    ComputeBuffer<float> query{MemoryPlace::kPinned}, out{MemoryPlace::kPinned};
    float drift = 0.4f;
  };
  /// Runs both for so many steps and expects the same pages and outputs after each.
  static void expect_same_pages(Decoding& there, Decoding& here, int steps) {
    for (int n = 0; n < steps; ++n) {
      const std::vector<float> got = there.token(n), expected = here.token(n);
      for (std::size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 2e-3) << "step " << n;
      for (std::int32_t layer = 0; layer < kLayers; ++layer) {
        for (std::int32_t head = 0; head < kKvHeads; ++head) {
          const auto pages = here.paged().attended_pages(layer, head);
          ASSERT_EQ(there.paged().attended_pages(layer, head), pages)
              << "step " << n << ", layer " << layer << ", head " << head;
          EXPECT_FALSE(pages.empty());
        }
      }
    }
    const RetrieveStats got = there.retriever->stats(), expected = here.retriever->stats();
    EXPECT_EQ(got.sparse_steps, expected.sparse_steps);
    EXPECT_EQ(got.selections, expected.selections);
    EXPECT_EQ(got.heads_corrected, expected.heads_corrected);
    EXPECT_EQ(got.heads_kept, expected.heads_kept);
  }
};

TEST_F(ChosenPagesTest, AreThoseOfTheHostStepByStep) {
  constexpr int kSteps = 20;  // fills a page
  struct Method {
    std::string name, pool, tau, rerank, reuse;
  };
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const Method& method :
         {Method{"quest", "max_score", "", "1", ""}, Method{"quest", "avg_softmax", "", "3", ""},
          Method{"arkvale", "avg_score", "", "", ""}, Method{"arkvale", "max_softmax", "", "", ""},
          Method{"freekv", "avg_softmax", "0.8", "1", "1"},
          Method{"freekv", "avg_softmax", "0.8", "2", "4"},
          Method{"freekv", "max_score", "-1", "64", "3"}}) {
      SCOPED_TRACE(method.name + " " + method.pool + " tau " + method.tau + " rerank " +
                   method.rerank + " reuse " + method.reuse);
      Options options = {{"decode_page", "16"},        {"decode_budget", "96"},
                         {"decode_sink", "16"},        {"decode_window", "32"},
                         {"decode_pool", method.pool}, {"decode_dense_layers", "0"}};
      for (const auto& [option, value] :
           {std::pair("decode_tau", method.tau), std::pair("decode_rerank", method.rerank),
            std::pair("decode_reuse", method.reuse)})
        if (!value.empty()) options[option] = value;
      const auto ops = simt::make_emulated_ops();
      Decoding there(method.name, options, make_device_compute(ops), dtype),
          here(method.name, options, make_cpu_compute(), dtype);
      expect_same_pages(there, here, kSteps);
      const RetrieveStats stats = there.retriever->stats();
      EXPECT_EQ(stats.heads_corrected > 0, method.tau == "0.8");
      EXPECT_EQ(stats.heads_kept > 0, method.name == "freekv");
      EXPECT_EQ(ops->runs(OpCode::kChoosePages), kSteps * kLayers);
      EXPECT_EQ(ops->runs(OpCode::kPageScores), 0);
      EXPECT_EQ(ops->runs(OpCode::kCopyAsync), kLayers * (kPrompt + kSteps))
          << "the rows that this test placed; nothing is fetched";
    }
  }
}

/// A layer that has left chooses as one that stays, and attends to the same rows bit for bit. What
/// moves is what the CPU moves.
TEST_F(ChosenPagesTest, OfALayerThatHasLeftAreThoseOfOneThatStays) {
  constexpr int kSteps = 36;  // fills two pages
  struct Method {
    std::string name, tau, rerank, reuse;
  };
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    for (const Method& method :
         {Method{"arkvale", "", "", ""}, Method{"freekv", "0.8", "1", "1"},
          Method{"freekv", "0.8", "2", "4"}, Method{"freekv", "-1", "64", "3"}}) {
      SCOPED_TRACE(method.name + " tau " + method.tau + " rerank " + method.rerank + " reuse " +
                   method.reuse);
      Options options = {{"decode_page", "16"},
                         {"decode_budget", "96"},
                         {"decode_sink", "16"},
                         {"decode_window", "32"},
                         {"decode_dense_layers", "0"}};
      for (const auto& [option, value] :
           {std::pair("decode_tau", method.tau), std::pair("decode_rerank", method.rerank),
            std::pair("decode_reuse", method.reuse)})
        if (!value.empty()) options[option] = value;
      Options left = options;
      left["decode_resident"] = "none";
      const auto ops = simt::make_emulated_ops();
      Decoding there(method.name, left, make_device_compute(ops), dtype),
          stays(method.name, options, make_device_compute(simt::make_emulated_ops()), dtype),
          here(method.name, left, make_cpu_compute(), dtype);
      for (int n = 0; n < kSteps; ++n) {
        ASSERT_EQ(there.token(n), stays.token(n)) << "step " << n;
        (void)here.token(n);
        for (std::int32_t layer = 0; layer < kLayers; ++layer) {
          EXPECT_TRUE(there.cache.on_host(layer));
          for (std::int32_t head = 0; head < kKvHeads; ++head) {
            const auto pages = stays.paged().attended_pages(layer, head);
            ASSERT_EQ(there.paged().attended_pages(layer, head), pages) << "step " << n;
            ASSERT_EQ(there.paged().resident_pages(layer, head),
                      here.paged().resident_pages(layer, head))
                << "step " << n;
          }
        }
      }
      const RetrieveStats got = there.retriever->stats(), expected = here.retriever->stats();
      EXPECT_EQ(got.sparse_steps, expected.sparse_steps);
      EXPECT_EQ(got.selections, expected.selections);
      EXPECT_EQ(got.heads_corrected, expected.heads_corrected);
      EXPECT_EQ(got.heads_kept, expected.heads_kept);
      EXPECT_EQ(got.pages_wanted, expected.pages_wanted);
      EXPECT_EQ(got.pages_copied, expected.pages_copied);
      EXPECT_EQ(got.bytes_copied, expected.bytes_copied);
      EXPECT_EQ(got.bytes_appended, expected.bytes_appended);
      EXPECT_GT(got.bytes_copied, 0);
      EXPECT_GT(got.bytes_appended, 0);
      EXPECT_EQ(got.layers_offloaded, kLayers);
      EXPECT_EQ(ops->runs(OpCode::kChoosePages), kSteps * kLayers);
      EXPECT_EQ(ops->runs(OpCode::kFillSlots), (method.tau.empty() ? 1 : 2) * kSteps * kLayers);
      EXPECT_EQ(ops->runs(OpCode::kPageScores), 0);
      EXPECT_EQ(ops->runs(OpCode::kGatherRows), kLayers) << "each layer once";
      EXPECT_EQ(ops->runs(OpCode::kCopyAsync), kLayers * (kPrompt + kSteps))
          << "the rows that this test placed; nothing is fetched";
    }
  }
}

/// ctkvr, which has no queries of the prompt here, leaves the layers to freekv where they are.
TEST_F(ChosenPagesTest, OfARetrieverThatStandsInAreReadInPlace) {
  const Options options = {{"decode_budget", "96"},
                           {"decode_sink", "16"},
                           {"decode_window", "32"},
                           {"decode_dense_layers", "0"}};
  const auto ops = simt::make_emulated_ops();
  Decoding there("ctkvr", options, make_device_compute(ops), DType::kF32);
  for (int n = 0; n < 3; ++n) (void)there.token(n);
  const RetrieveStats stats = there.retriever->stats();
  EXPECT_NE(stats.note.find("freekv decoded"), std::string::npos) << stats.note;
  EXPECT_GT(stats.sparse_steps, 0);
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    EXPECT_FALSE(there.cache.on_host(layer)) << layer;
  EXPECT_EQ(ops->runs(OpCode::kGatherRows), 0);
}

/// The host fills the slots before the first step, and the device goes on from there.
TEST_F(ChosenPagesTest, SlotsBeginWithTheRowsThatACompressorRanked) {
  RetainedRows retained;
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    retained.hot.push_back({{150, 40, 9, 100, 99}, {60, 175, 7, 30, 20}});
  const Options options = {{"decode_page", "16"},       {"decode_budget", "96"},
                           {"decode_sink", "16"},       {"decode_window", "32"},
                           {"decode_resident", "none"}, {"decode_dense_layers", "0"}};
  for (const simt::Copies copies : {simt::Copies::kEarly, simt::Copies::kLate}) {
    const auto ops = simt::make_emulated_ops({.copies = copies});
    Decoding there("freekv", options, make_device_compute(ops), DType::kF32, 0, &retained),
        here("freekv", options, make_cpu_compute(), DType::kF32, 0, &retained);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::int32_t head = 0; head < kKvHeads; ++head)
        EXPECT_EQ(there.paged().resident_pages(layer, head),
                  here.paged().resident_pages(layer, head));
    }
    expect_same_pages(there, here, 20);
    const RetrieveStats got = there.retriever->stats(), expected = here.retriever->stats();
    EXPECT_EQ(got.pages_copied, expected.pages_copied);
    EXPECT_EQ(got.bytes_copied, expected.bytes_copied);
    EXPECT_EQ(got.bytes_appended, expected.bytes_appended);
    EXPECT_GT(ops->runs(OpCode::kFillSlots), 0);
  }
}

TEST_F(ChosenPagesTest, ALayerThatLeavesTheDeviceTakesItsChoicesAlong) {
  constexpr int kSteps = 30;
  const Options options = {{"decode_page", "16"},   {"decode_budget", "96"}, {"decode_sink", "16"},
                           {"decode_window", "32"}, {"decode_tau", "0.5"},   {"decode_rerank", "1"},
                           {"decode_reuse", "6"}};
  const auto bytes = [&](std::int64_t rows) {
    const RetrieveShape shape{.num_layers = kLayers,
                              .num_heads = kHeads,
                              .num_kv_heads = kKvHeads,
                              .head_dim = kDim,
                              .num_contexts = 2};
    return choosing_bytes(shape,
                          **retrievers().make("freekv", PlugOptions(options_of("freekv", options))),
                          2, rows) +
           kLayers * rows * std::int64_t{kKvHeads} * 2 * kDim * std::int64_t{sizeof(float)};
  };
  const auto ops = simt::make_emulated_ops();
  Decoding there("freekv", options, make_device_compute(ops), DType::kF32,
                 bytes(kPrompt + 15 + kPageTokens)),
      here("freekv", options, make_cpu_compute(), DType::kF32);
  expect_same_pages(there, here, kSteps);
  EXPECT_EQ(there.retriever->stats().layers_offloaded, 1);
  EXPECT_EQ(ops->runs(OpCode::kChoosePages), kLayers * kSteps);
  EXPECT_GT(ops->runs(OpCode::kFillSlots), 0);
  EXPECT_LT(ops->runs(OpCode::kFillSlots), 2 * (kSteps - 4)) << "it left after several steps";
}

TEST_F(ChosenPagesTest, ABudgetAtTheContextIsDense) {
  const Options options = {{"decode_page", "16"},
                           {"decode_budget", "208"},
                           {"decode_sink", "0"},
                           {"decode_window", "0"},
                           {"decode_dense_layers", "0"}};
  const auto ops = simt::make_emulated_ops();
  Decoding there("quest", options, make_device_compute(ops), DType::kF32),
      dense("dense", {}, make_cpu_compute(), DType::kF32);
  for (int n = 0; n < 208 - kPrompt; ++n) {
    const std::vector<float> got = there.token(n), expected = dense.token(n);
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], 1e-5) << "step " << n;
  }
  EXPECT_EQ(ops->runs(OpCode::kChoosePages), 0);
  (void)there.token(208 - kPrompt);
  EXPECT_EQ(ops->runs(OpCode::kChoosePages), kLayers) << "one row more";
}

}  // namespace
}  // namespace quire::testing
