/// Decode steps run as graphs where possible, and answers have the same bits.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "engine/answer/decode_batch.h"
#include "engine/device/device_compute.h"
#include "engine/device/step_recording.h"
#include "engine/retrieve/retriever.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

using namespace testing;
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

 private:
  const std::unique_ptr<Retriever> inner_ = std::move(*retrievers().make("dense"));
};

class DeviceStepsTest : public ::testing::Test {
 protected:
  DeviceStepsTest() {
    model_ = std::move(*make_random_model(config_,
                                          {.weights = WeightFormat::kF32, .kv_dtype = DType::kF16},
                                          5, make_device_compute(ops_)));
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
          model_->compute().memory());
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
  std::unique_ptr<Model> model_;
  std::unique_ptr<PagePool> pool_;
  ForwardWorkspace workspace_;
  std::unique_ptr<DecodeBatch> batch_;
};

/// The steps run with one sequence, then three, then one again, past the border of a chunk of keys.
TEST_F(DeviceStepsTest, AGraphIsRecordedOncePerNumberOfRowsAndAgainPastAChunk) {
  const auto a = filled(240), b = filled(5), c = filled(33);
  const auto all = [&] {
    std::vector<std::vector<float>> logits;
    for (std::int32_t i = 0; i < 8; ++i) logits.push_back(step({a.get()}, 3 + i));
    for (std::int32_t i = 0; i < 6; ++i) logits.push_back(step({a.get(), b.get(), c.get()}, 9 + i));
    for (std::int32_t i = 0; i < 8; ++i) logits.push_back(step({a.get()}, 20 + i));
    a->truncate_all(240);
    b->truncate_all(5);
    c->truncate_all(33);
    return logits;
  };
  const auto first = all();
  EXPECT_GE(ops_->runs(OpCode::kStep), 12) << "of 22 steps";
  EXPECT_GE(ops_->recordings(), 3) << "one row, three rows, one row past 256 keys";
  EXPECT_LE(ops_->recordings(), 5);
  // No recorded graph fits, so from now on every step runs without a graph.
  ops_->fail_recording(true);
  const std::int64_t recordings = ops_->recordings();
  step({b.get(), c.get()}, 3);
  b->truncate_all(5);
  c->truncate_all(33);
  EXPECT_EQ(all(), first);
  EXPECT_EQ(ops_->recordings(), recordings);
}

TEST_F(DeviceStepsTest, WhereNoGraphCanBeMadeStepsRunOneByOneAndAreNotTriedForEver) {
  const auto cache = filled(9);
  ops_->fail_recording(true);
  for (std::int32_t i = 0; i < 20; ++i) (void)step({cache.get()}, 3 + i);
  EXPECT_EQ(ops_->recordings(), 0);
  EXPECT_EQ(ops_->runs(OpCode::kStep), StepRecording::kMostFailures);
}

TEST_F(DeviceStepsTest, AStepInWhichSomebodyWaitsIsNoGraph) {
  const auto cache = filled(40);
  for (std::int32_t i = 0; i < 6; ++i) (void)step({cache.get()}, 3 + i, Who::kHost);
  EXPECT_EQ(ops_->runs(OpCode::kStep), 0);
}

TEST(StepRecordingTest, UploadsComeFirstAndNeighboursAreOne) {
  std::vector<std::byte> device(100), pinned(100);
  OpList list;
  const std::int64_t x = 1;
  list.add_upload({device.data(), pinned.data(), 16});
  list.add(OpCode::kAddBias, &x, 8);
  list.add_upload({device.data() + 16, pinned.data() + 16, 8});
  list.add_upload({device.data() + 50, pinned.data() + 24, 8});  // elsewhere on the device
  const auto ops = list.view();
  ASSERT_EQ(ops.size(), 3U);
  ASSERT_EQ(ops[0].code, OpCode::kCopy);
  EXPECT_EQ(static_cast<const cuda::CopyArgs*>(ops[0].args)->bytes, 24);
  EXPECT_EQ(static_cast<const cuda::CopyArgs*>(ops[1].args)->to, device.data() + 50);
  EXPECT_EQ(ops[2].code, OpCode::kAddBias);
  OpList other = list;
  EXPECT_TRUE(other == list);
  other.add_upload({device.data() + 24, pinned.data() + 24, 8});
  EXPECT_FALSE(other == list);
}

TEST(StepRecordingTest, AListIsAnotherWhenAnyByteOfItIs) {
  OpList a, b;
  const std::int64_t x = 1, y = 2;
  a.add(OpCode::kCopy, &x, 8);
  b.add(OpCode::kCopy, &x, 8);
  EXPECT_TRUE(a == b);
  b.add(OpCode::kCopy, &x, 8);
  EXPECT_FALSE(a == b);
  a.add(OpCode::kCopy, &y, 8);
  EXPECT_FALSE(a == b);
  b.clear();
  b.add(OpCode::kCopy, &x, 8);
  b.add(OpCode::kSwiglu, &y, 8);
  EXPECT_FALSE(a == b);
  EXPECT_EQ(a.view().size(), 2u);
}

TEST(StepRecordingTest, ALostDeviceIsReportedAndNotTriedAgain) {
  const auto ops = simt::make_emulated_ops();
  StepRecording recording;
  const cuda::HoldArgs hold{0, cuda::Lane::kCompute};
  for (int i = 0; i < 2; ++i) {
    recording.begin(1);
    recording.add(OpCode::kHold, &hold, sizeof hold);
    if (i == 1) ops->lose();
    EXPECT_EQ(recording.end(*ops).code(), i == 0 ? Code::kOk : Code::kDeviceLost);
  }
  EXPECT_EQ(recording.stats().failures, 0);
}

}  // namespace
}  // namespace quire
