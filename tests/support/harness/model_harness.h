/// Runs a model in tests: its own cache, whole or chunked prefill, decode.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/model/model.h"

namespace quire::testing {

class Runner {
 public:
  /// `cached` is the dtype of the cache; none: that of stored KV.
  explicit Runner(std::unique_ptr<Model> model, std::int64_t max_bytes = 0,
                  std::optional<DType> cached = std::nullopt)
      : model_(std::move(model)),
        pool_({model_->config().num_kv_heads, model_->config().head_dim,
               cached.value_or(model_->options().kv_dtype)},
              max_bytes, model_->compute().memory()),
        cache_(pool_, model_->config().num_layers) {}

  Model& model() { return *model_; }
  WorkingCache& cache() { return cache_; }
  PagePool& pool() { return pool_; }
  std::int64_t vocab() const { return model_->config().vocab_size; }
  std::int64_t size() const { return cache_.num_rows(0); }
  void clear() { cache_.truncate_all(0); }

  /// Appends tokens at the next positions and returns the logits of the last `num_logits` of them.
  std::vector<float> append(std::span<const std::int32_t> ids, std::int64_t num_logits,
                            ForwardHook* hook = nullptr) {
    const auto n = static_cast<std::int64_t>(ids.size());
    std::vector<std::int32_t> positions(ids.size()), wanted(static_cast<std::size_t>(num_logits));
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(size()));
    std::iota(wanted.begin(), wanted.end(), static_cast<std::int32_t>(n - num_logits));
    std::vector<float> logits(static_cast<std::size_t>(num_logits * vocab()), NAN);
    ForwardRequest request;
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache_;
    request.hook = hook;
    request.logit_rows = wanted;
    request.logits = logits.data();
    const Status status = forward(*model_, request, workspace_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }
  std::vector<float> append_chunked(std::span<const std::int32_t> ids, std::size_t chunk,
                                    std::int64_t num_logits) {
    std::vector<float> all;
    for (std::size_t i = 0; i < ids.size(); i += chunk) {
      const auto part = ids.subspan(i, std::min(chunk, ids.size() - i));
      const std::vector<float> logits = append(part, static_cast<std::int64_t>(part.size()));
      all.insert(all.end(), logits.begin(), logits.end());
    }
    all.erase(all.begin(), all.end() - num_logits * vocab());
    return all;
  }
  ForwardWorkspace& workspace() { return workspace_; }

 private:
  std::unique_ptr<Model> model_;
  PagePool pool_;
  WorkingCache cache_;
  ForwardWorkspace workspace_;
};

/// Returns max |a - b| / max |b|; NaN anywhere gives NaN.
inline double max_relative(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double diff = 0, top = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - b[i]);
    if (std::isnan(d)) return NAN;
    diff = std::max(diff, d);
    top = std::max(top, std::abs(static_cast<double>(b[i])));
  }
  return top > 0 ? diff / top : diff;
}

/// Returns ||a - b|| / ||b||.
inline double relative_frobenius(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double diff = 0, norm = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    diff += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(diff / norm);
}

inline std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace quire::testing
