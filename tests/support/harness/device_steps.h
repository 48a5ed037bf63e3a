/// Decode steps on an emulated device whose graphs, waits and operations are counted.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/answer/decode_batch.h"
#include "engine/device/device_compute.h"
#include "engine/residency/device_pool.h"
#include "engine/retrieve/retriever.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/support/simt/refusing_ops.h"

namespace quire::testing {

using cuda::OpCode;

/// Dense attention that must be called on the host.
class HostRetriever final : public Retriever {
 public:
  HostRetriever() : Retriever({}) {}
  Status prepare(const SequenceContext&, const AssembledPrompt&) override { return {}; }
  Status attend(const RetrieveStep& step) override {
    HostRows rows;
    AttentionArgs args{};
    args.q = step.query;
    args.query_positions = &step.position;
    args.rows = 1;
    args.ldq = args.ldo = std::int64_t{step.num_heads} * step.head_dim;
    args.num_heads = step.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
    QUIRE_ASSIGN_OR_RETURN(args.kv, step.cache->host_view(step.layer, rows));
    args.out = step.out;
    return attention(args);
  }
};

class DeviceStepsTest : public ::testing::Test {
 protected:
  explicit DeviceStepsTest(WeightFormat weights = WeightFormat::kF32) {
    model_ = make_model(weights);
  }
  std::unique_ptr<Model> make_model(WeightFormat weights) {
    return std::move(*make_random_model(config_, {.weights = weights, .kv_dtype = DType::kF16}, 5,
                                        make_device_compute(refusing_)));
  }

  std::unique_ptr<WorkingCache> filled(std::int32_t n) {
    auto cache = std::make_unique<WorkingCache>(pool(), config_.num_layers);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n)), positions(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(3 + i * 7 % 37);
    std::iota(positions.begin(), positions.end(), 0);
    ForwardRequest r;
    r.token_ids = ids;
    r.positions = positions;
    r.cache = cache.get();
    const Status status = forward(*model_, r, workspace_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return cache;
  }
  enum class Who { kDevice, kHost };
  /// Runs one step of these caches and returns their logits.
  std::vector<float> step(const std::vector<WorkingCache*>& caches, std::int32_t token,
                          Who attends = Who::kDevice) {
    std::vector<DecodeRow> rows(caches.size());
    std::vector<std::unique_ptr<Retriever>> made;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      made.push_back(attends == Who::kHost ? std::make_unique<HostRetriever>()
                                           : std::move(*retrievers().make("dense")));
      rows[i].token_id = token;
      rows[i].position = static_cast<std::int32_t>(caches[i]->num_rows(0));
      rows[i].cache = caches[i];
      rows[i].retriever = made.back().get();
    }
    const Status status = batch().step(rows);
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<float> out;
    for (const DecodeRow& row : rows) {
      EXPECT_TRUE(row.status.ok()) << row.status.to_string();
      out.insert(out.end(), row.logits.begin(), row.logits.end());
    }
    return out;
  }
  PagePool& pool() {
    if (pool_ == nullptr)
      pool_ = std::make_unique<PagePool>(
          PageFormat{config_.num_kv_heads, config_.head_dim, DType::kF16}, 0,
          model_->compute().memory(), 1 << 24);
    return *pool_;
  }
  DecodeBatch& batch() {
    if (batch_ == nullptr) batch_ = std::make_unique<DecodeBatch>(*model_);
    return *batch_;
  }

  const ModelConfig config_ = std::move(*parse_model_config(
      tiny_config_json("\"num_hidden_layers\": 3, \"max_position_embeddings\": 512",
                       {"num_hidden_layers", "max_position_embeddings"})));
  const std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  const std::shared_ptr<simt::RefusingOps> refusing_ = std::make_shared<simt::RefusingOps>(ops_);
  std::unique_ptr<Model> model_;
  std::unique_ptr<PagePool> pool_;
  ForwardWorkspace workspace_;
  std::unique_ptr<DecodeBatch> batch_;
};

/// Sequences with retrievers of their own, which choose pages by what is in the device's
/// memory.
class DeviceChoosingStepsTest : public DeviceStepsTest {
 protected:
  using DeviceStepsTest::DeviceStepsTest;
  using Options = std::map<std::string, std::string, std::less<>>;
  struct Sequence {
    std::unique_ptr<WorkingCache> cache;
    std::unique_ptr<Retriever> retriever;
  };
  Sequence sequence(const std::string& name, std::int32_t n, const Options& more = {},
                    DevicePool* slots = nullptr) {
    return sequence(name, filled(n), more, slots);
  }
  Sequence sequence(const std::string& name, std::unique_ptr<WorkingCache> cache,
                    const Options& more = {}, DevicePool* slots = nullptr) {
    const auto n = static_cast<std::int32_t>(cache->num_rows(0));
    Options options = {{"decode_page", "16"},
                       {"decode_budget", "64"},
                       {"decode_sink", "16"},
                       {"decode_window", "16"},
                       {"decode_dense_layers", "0"}};
    for (const auto& [option, value] : more) options[option] = value;
    Sequence out{std::move(cache),
                 std::move(*retrievers().make(name, PlugOptions(options_of(name, options))))};
    const ContextRows whole{0, n};
    SequenceContext context;
    AssembledPrompt assembled;
    context.cache = out.cache.get();
    context.device = slots != nullptr ? slots : &slots_;
    context.compute = &model_->compute();
    context.num_layers = config_.num_layers;
    context.num_heads = config_.num_heads;
    context.num_kv_heads = config_.num_kv_heads;
    context.head_dim = config_.head_dim;
    assembled.contexts = std::span(&whole, 1);
    assembled.num_tokens = n;
    const Status prepared = out.retriever->prepare(context, assembled);
    EXPECT_TRUE(prepared.ok()) << prepared.to_string();
    return out;
  }
  struct Stepped {
    Status status;
    std::vector<float> logits;
  };
  std::vector<Stepped> step_all(std::span<const Sequence> sequences, std::int32_t token) {
    std::vector<DecodeRow> rows(sequences.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].token_id = token;
      rows[i].position = static_cast<std::int32_t>(sequences[i].cache->num_rows(0));
      rows[i].cache = sequences[i].cache.get();
      rows[i].retriever = sequences[i].retriever.get();
    }
    const Status status = batch().step(rows);
    EXPECT_TRUE(status.ok()) << status.to_string();
    std::vector<Stepped> out;
    for (const DecodeRow& row : rows) {
      out.push_back({row.status, {}});
      if (row.status.ok()) out.back().logits.assign(row.logits.begin(), row.logits.end());
    }
    return out;
  }
  /// Products with another number of rows may differ in their last bits, and then so do keys
  /// that are rounded to f16. Other pages make a difference of 0.1 and more.
  static void expect_as_alone(const Stepped& together, const Stepped& alone,
                              const std::string& what) {
    ASSERT_TRUE(together.status.ok()) << what << together.status.to_string();
    ASSERT_TRUE(alone.status.ok()) << what << alone.status.to_string();
    for (std::size_t i = 0; i < alone.logits.size(); ++i)
      ASSERT_NEAR(together.logits[i], alone.logits[i], 5e-3) << what;
  }
  DevicePool slots_{0, model_->compute().memory()};
};

}  // namespace quire::testing
