/// Computes reuse without the pipeline: documents are prefilled alone, their raw KV is placed by
/// hand, and the question runs with forward().
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/model/forward.h"
#include "kernels/choice/topk.h"
#include "kernels/rows/kv.h"

namespace quire::testing {

class ReferenceEngine {
 public:
  explicit ReferenceEngine(Model& model)
      : model_(model),
        pool_({model.config().num_kv_heads, model.config().head_dim, model.options().kv_dtype}, 0) {
  }

  using Ids = std::vector<std::int32_t>;

  /// Returns greedy ids over the concatenation.
  Ids recompute(Ids prompt, int n) {
    WorkingCache cache(pool_, model_.config().num_layers);
    const std::int32_t first = run(cache, prompt, 0, nullptr);
    return decode(cache, first, static_cast<std::int32_t>(prompt.size()), n);
  }

  /// Returns greedy ids over independently prefilled documents. `naive`: documents keep the
  /// positions at which they were prefilled.
  Ids reuse(const Ids& prefix, const std::vector<Ids>& docs, const Ids& question, int n,
            bool naive = false) {
    WorkingCache cache(pool_, model_.config().num_layers);
    if (!prefix.empty()) run(cache, prefix, 0, nullptr);
    auto offset = static_cast<std::int32_t>(prefix.size());
    for (const Ids& doc : docs) {
      const std::int32_t first = naive ? 1 : offset;
      place(cache, capture(doc), doc.size(), first);
      offset += static_cast<std::int32_t>(doc.size());
    }
    const std::int32_t token = run(cache, question, offset, nullptr);
    return decode(cache, token, offset + static_cast<std::int32_t>(question.size()), n);
  }

 private:
  struct Raw {
    std::vector<std::vector<float>> k, v;  // [layer][rows * kv_dim]
  };
  class Keep : public ForwardHook {
   public:
    explicit Keep(Raw& raw, std::int64_t dim) : raw_(raw), dim_(dim) {}
    Status after_projection(LayerPass& p) override {
      auto copy = [&](const float* x, std::vector<float>& to) {
        for (std::int64_t r = 1; r < p.qkv.rows; ++r)
          to.insert(to.end(), x + r * p.qkv.ld, x + r * p.qkv.ld + dim_);
      };
      copy(p.qkv.k, raw_.k.emplace_back());
      copy(p.qkv.v, raw_.v.emplace_back());
      return {};
    }

   private:
    Raw& raw_;
    std::int64_t dim_;
  };

  std::int64_t kv_dim() const {
    return std::int64_t{model_.config().num_kv_heads} * model_.config().head_dim;
  }

  /// Captures a document's KV. Row 0 is the BOS before it and is not kept.
  Raw capture(const Ids& doc) {
    Raw raw;
    Keep keep(raw, kv_dim());
    Ids ids = {1};
    ids.insert(ids.end(), doc.begin(), doc.end());
    WorkingCache cache(pool_, model_.config().num_layers);
    run(cache, ids, 0, &keep);
    return raw;
  }

  void place(WorkingCache& cache, const Raw& raw, std::size_t n, std::int32_t first) {
    Ids positions(n);
    std::iota(positions.begin(), positions.end(), first);
    const DType dtype = model_.options().kv_dtype;
    const auto rows = static_cast<std::int64_t>(n);
    const std::int64_t row = model_.config().head_dim *
                             static_cast<std::int64_t>(dtype_bytes(dtype));
    std::vector<std::uint8_t> packed(n * static_cast<std::size_t>(2 * kv_dim()) *
                                     dtype_bytes(dtype));
    for (std::int32_t layer = 0; layer < model_.config().num_layers; ++layer) {
      const auto l = static_cast<std::size_t>(layer);
      ASSERT_TRUE(kv_pack_reference({raw.k[l].data(), raw.v[l].data(), rows, kv_dim(), kv_dim(),
                                     model_.config().num_kv_heads, model_.config().head_dim, dtype,
                                     packed.data()})
                      .ok());
      auto at = cache.add_rows(layer, positions);
      ASSERT_TRUE(at.ok());
      ASSERT_TRUE(cache
                      .place(layer, model_.rope(),
                             {packed.data(), rows, dtype, 2 * rows * row, rows * row, row}, *at)
                      .ok());
    }
  }

  /// Runs one pass over all ids and returns the greedy token after the last row.
  std::int32_t run(WorkingCache& cache, const Ids& ids, std::int32_t first, ForwardHook* hook) {
    Ids positions(ids.size());
    std::iota(positions.begin(), positions.end(), first);
    std::vector<float> logits(static_cast<std::size_t>(model_.config().vocab_size));
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = hook;
    request.logit_rows = std::span(&last, 1);
    request.logits = logits.data();
    const Status status = forward(model_, request, workspace_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return static_cast<std::int32_t>(
        argmax(logits.data(), static_cast<std::int64_t>(logits.size())));
  }

  Ids decode(WorkingCache& cache, std::int32_t token, std::int32_t position, int n) {
    Ids out = {token};
    while (static_cast<int>(out.size()) < n) {
      out.push_back(run(cache, {out.back()}, position, nullptr));
      ++position;
    }
    return out;
  }

  Model& model_;
  PagePool pool_;
  ForwardWorkspace workspace_;
};

}  // namespace quire::testing
