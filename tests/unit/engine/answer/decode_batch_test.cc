#include "engine/answer/decode_batch.h"

#include "engine/retrieve/head/head_track.h"

#include <gtest/gtest.h>

#include <new>
#include <numeric>

#include "engine/model/forward.h"
#include "kernels/parallel.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

TEST(DecodeBatchTest, RowsEqualForwardOnEachSequenceAlone) {
  const RandomModelFolder folder;
  for (const WeightFormat weights : {WeightFormat::kF32, WeightFormat::kBF16}) {
    ModelOptions options;
    options.weights = weights;
    auto model = load_model(folder.path(), options);
    ASSERT_TRUE(model.ok());
    const ModelConfig& config = (*model)->config();
    PagePool pool({config.num_kv_heads, config.head_dim, options.kv_dtype}, 0);
    ForwardWorkspace workspace;
    std::mt19937 rng(4);
    std::vector<std::unique_ptr<WorkingCache>> batched, alone;
    std::vector<std::int32_t> lengths = {1, 15, 16, 17, 70};
    auto prefill = [&](const std::vector<std::int32_t>& ids) {
      auto cache = std::make_unique<WorkingCache>(pool, config.num_layers);
      std::vector<std::int32_t> positions(ids.size());
      std::iota(positions.begin(), positions.end(), 0);
      ForwardRequest request{};
      request.token_ids = ids;
      request.positions = positions;
      request.cache = cache.get();
      EXPECT_TRUE(forward(**model, request, workspace).ok());
      return cache;
    };
    for (std::int32_t n : lengths) {
      const auto ids = random_ids(rng, static_cast<std::size_t>(n));
      batched.push_back(prefill(ids));
      alone.push_back(prefill(ids));
    }
    DecodeBatch batch(**model);
    const auto retriever = std::move(*retrievers().make("dense"));
    for (int step = 0; step < 4; ++step) {
      std::vector<DecodeRow> rows(lengths.size());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].token_id = 500 + step * 7 + static_cast<std::int32_t>(i);
        rows[i].position = lengths[i] + step;
        rows[i].cache = batched[i].get();
        rows[i].retriever = retriever.get();
      }
      ASSERT_TRUE(batch.step(rows).ok());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        ASSERT_TRUE(rows[i].status.ok());
        std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
        const std::int32_t zero = 0;
        ForwardRequest request{};
        request.token_ids = std::span(&rows[i].token_id, 1);
        request.positions = std::span(&rows[i].position, 1);
        request.cache = alone[i].get();
        request.logit_rows = std::span(&zero, 1);
        request.logits = logits.data();
        ASSERT_TRUE(forward(**model, request, workspace).ok());
        for (std::size_t v = 0; v < logits.size(); ++v)
          ASSERT_EQ(rows[i].logits[v], logits[v]) << "row " << i << " step " << step;
      }
    }
  }
}

class FailingRetriever : public Retriever {
 public:
  FailingRetriever() : Retriever({}) {}
  Status prepare(const SequenceContext&, const AssembledPrompt&) override { return {}; }
  Status attend(const RetrieveStep& step) override {
    return step.layer == 1 ? Status::io("gone") : Status();
  }
};

TEST(DecodeBatchTest, OneFailingRowLeavesTheOthersAlone) {
  const RandomModelFolder folder;
  ModelOptions options;
  options.weights = WeightFormat::kF32;
  auto model = load_model(folder.path(), options);
  ASSERT_TRUE(model.ok());
  const ModelConfig& config = (*model)->config();
  PagePool pool({config.num_kv_heads, config.head_dim, options.kv_dtype}, 0);
  WorkingCache good(pool, config.num_layers), bad(pool, config.num_layers),
      other(pool, config.num_layers);
  const auto dense = std::move(*retrievers().make("dense"));
  FailingRetriever failing;
  DecodeBatch batch(**model);
  std::vector<DecodeRow> rows(2), single(1);
  rows[0].token_id = rows[1].token_id = single[0].token_id = 777;
  rows[0].cache = &bad;
  rows[0].retriever = &failing;
  rows[1].cache = &good;
  rows[1].retriever = single[0].retriever = dense.get();
  single[0].cache = &other;
  ASSERT_TRUE(batch.step(rows).ok());
  EXPECT_EQ(rows[0].status.code(), Code::kIo);
  EXPECT_EQ(bad.num_rows(0), 0);
  ASSERT_TRUE(rows[1].status.ok());
  const std::vector<float> logits(rows[1].logits.begin(), rows[1].logits.end());
  ASSERT_TRUE(batch.step(single).ok());
  EXPECT_TRUE(std::equal(logits.begin(), logits.end(), single[0].logits.begin()));
}

/// Throws out of memory, before the layers run or in one of them.
class ThrowingRetriever : public Retriever, public HeadDriven {
 public:
  explicit ThrowingRetriever(bool at_begin) : Retriever({}), at_begin_(at_begin) {}
  Status prepare(const SequenceContext&, const AssembledPrompt&) override { return {}; }
  HeadInput head_input(const RetrievalHead&) const override { return HeadInput::kEmbedding; }
  TokenInput token_input() const override { return {}; }
  void take_projection(const float*, const float*) override {}
  bool begins_in_parallel() const override { return true; }
  std::span<const std::int32_t> hidden_layers() const override { return {}; }
  void take_hidden(std::int32_t, const float*) override {}
  Status begin_step(std::int32_t, std::int32_t) override {
    return at_begin_ ? throw std::bad_alloc() : Status();
  }
  Status attend(const RetrieveStep&) override { throw std::bad_alloc(); }

 private:
  const bool at_begin_;
};

TEST(DecodeBatchTest, MemoryThatIsUsedUpInAThreadEndsItsRowAlone) {
  const RandomModelFolder folder;
  const auto model = std::move(*load_model(folder.path(), {.weights = WeightFormat::kF32}));
  const ModelConfig& config = model->config();
  PagePool pool({config.num_kv_heads, config.head_dim, ModelOptions().kv_dtype}, 0);
  set_num_threads(2);
  for (const bool at_begin : {true, false}) {
    DecodeBatch batch(*model);
    std::vector<std::unique_ptr<WorkingCache>> caches;
    std::vector<std::unique_ptr<Retriever>> made;
    std::vector<DecodeRow> rows(5);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      caches.push_back(std::make_unique<WorkingCache>(pool, config.num_layers));
      made.push_back(i == 4 ? std::move(*retrievers().make("dense"))
                            : std::make_unique<ThrowingRetriever>(at_begin));
      rows[i].token_id = 777;
      rows[i].cache = caches[i].get();
      rows[i].retriever = made[i].get();
    }
    ASSERT_TRUE(batch.step(rows).ok());
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_EQ(rows[i].status.code(), Code::kResourceExhausted) << i;
    EXPECT_TRUE(rows[4].status.ok()) << rows[4].status.to_string();
  }
  set_num_threads(0);
}

TEST(DecodeBatchTest, AFullPoolFailsTheRowThatNeedsAPage) {
  const RandomModelFolder folder;
  ModelOptions options;
  options.weights = WeightFormat::kF32;
  auto model = load_model(folder.path(), options);
  ASSERT_TRUE(model.ok());
  const PageFormat format{(*model)->config().num_kv_heads, (*model)->config().head_dim,
                          options.kv_dtype};
  PagePool pool(format, format.page_bytes() * 2);  // has two pages, and three layers need three
  WorkingCache cache(pool, 3);
  const auto dense = std::move(*retrievers().make("dense"));
  DecodeBatch batch(**model);
  std::vector<DecodeRow> rows(1);
  rows[0].cache = &cache;
  rows[0].retriever = dense.get();
  ASSERT_TRUE(batch.step(rows).ok());
  EXPECT_EQ(rows[0].status.code(), Code::kResourceExhausted);
  EXPECT_EQ(pool.bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire::testing
