/// A prompt with its queries and the answer after it, for retrievers that choose single rows. Plain
/// loops compute the expected results.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/residency/device_pool.h"
#include "engine/residency/transfer_streams.h"
#include "engine/retrieve/prompt_queries.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention_rows.h"
#include "tests/support/harness/random_row.h"
#include "tests/support/host_compute.h"

namespace quire::testing {

using RetrieverOptions = std::map<std::string, std::string, std::less<>>;

/// A sequence that is equal for every retriever: random keys, and queries of prompt and answer that
/// turn slowly with occasional jumps.
class RowSequence {
 public:
  static constexpr std::int32_t kLayers = 2, kHeads = 6, kKvHeads = 2, kDim = 16,
                                kGroup = kHeads / kKvHeads, kPrompt = 331;
  static constexpr std::size_t kQuery = kHeads * kDim;

  RowSequence()
      : pool_(PageFormat{kKvHeads, kDim, DType::kF32}, 0),
        cache_(pool_, kLayers),
        rope_(make_rope()) {
    for (std::int32_t p = 0; p < kPrompt; ++p) add_row(p);
  }

  void add_row(std::int32_t position) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      EXPECT_TRUE(cache_.add_rows(layer, std::span(&position, 1)).ok());
      const auto raw = random_row(static_cast<std::uint32_t>(position * kLayers + layer),
                                  kKvHeads * 2 * kDim);
      EXPECT_TRUE(cache_
                      .place(layer, rope_,
                             {raw.data(), 1, DType::kF32, 2 * kDim * 4, kDim * 4, kDim * 4},
                             cache_.num_rows(layer) - 1)
                      .ok());
    }
  }
  std::int32_t num_rows() const { return static_cast<std::int32_t>(cache_.num_rows(0)); }
  WorkingCache& cache() { return cache_; }

  /// Returns the post-RoPE query of a position.
  std::vector<float> query(std::int32_t layer, std::int32_t position) const {
    auto raw = random_row(static_cast<std::uint32_t>(90000 + layer + 10 * (position / 9)), kQuery);
    const auto drift = random_row(static_cast<std::uint32_t>(50000 + layer + 10 * position),
                                  kQuery);
    for (std::size_t i = 0; i < raw.size(); ++i) raw[i] += 0.2f * drift[i];
    return raw;
  }

  /// Returns the queries of the last `count` rows of the prompt, as a model's passes would show
  /// them.
  std::unique_ptr<PromptQueries> queries(std::int64_t count, std::int32_t first = 0) {
    auto out = std::make_unique<PromptQueries>(rope_, PromptQueries::Shape{kLayers, kHeads, kDim},
                                               WantedQueries{count, WantedQueries::Rows::kLast},
                                               kPrompt);
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      for (std::int32_t p =
               std::max<std::int32_t>(first, static_cast<std::int32_t>(kPrompt - count));
           p < kPrompt; ++p)
        show(*out, layer, p);
    }
    return out;
  }

  RetrieveStep step(std::int32_t layer, const std::vector<float>& query, std::vector<float>& out) {
    out.assign(kQuery, NAN);
    return {layer, query.data(), num_rows() - 1, &cache_,        kHeads,
            kDim,  out.data(),   DType::kF32,    &host_compute()};
  }

  /// Returns the products of a query with every row's key of one head, over sqrt(head_dim).
  std::vector<double> products(std::int32_t layer, std::int32_t head,
                               std::span<const float> query) const {
    const KvView kv = cache_.view(layer);
    std::vector<double> out;
    for (std::int64_t row = 0; row < kv.num_rows; ++row) {
      const auto* key = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                        head / kGroup * kv.head_stride + row % kPageTokens * kv.token_stride;
      double sum = 0;
      for (std::int32_t c = 0; c < kDim; ++c)
        sum += double{query[static_cast<std::size_t>(head * kDim + c)]} *
               load_f32(key, kv.dtype, c);
      out.push_back(sum / std::sqrt(double{kDim}));
    }
    return out;
  }
  /// Returns the largest softmax weight, over `rows` of the cache, that a query head of the KV head
  /// gives to each of them.
  std::map<std::int32_t, double> weights(std::int32_t layer, std::int32_t kv_head,
                                         std::span<const float> query,
                                         const std::vector<std::int32_t>& rows) const {
    std::map<std::int32_t, double> out;
    for (std::int32_t h = kv_head * kGroup; h < (kv_head + 1) * kGroup; ++h) {
      const auto z = products(layer, h, query);
      double sum = 0;
      for (const std::int32_t row : rows) sum += std::exp(z[static_cast<std::size_t>(row)]);
      for (const std::int32_t row : rows)
        out[row] = std::max(out[row], std::exp(z[static_cast<std::size_t>(row)]) / sum);
    }
    return out;
  }

  /// Returns the attention of a step to these rows, a list for each KV head.
  std::vector<float> attention_to(std::int32_t layer, const std::vector<float>& query,
                                  std::vector<std::vector<std::int32_t>> rows) {
    std::vector<float> out;
    std::vector<RowList> lists;
    for (auto& list : rows) {
      std::sort(list.begin(), list.end());
      EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end()) << "a row counts twice";
      lists.push_back({list.data(), static_cast<std::int64_t>(list.size())});
    }
    const RetrieveStep s = step(layer, query, out);
    EXPECT_TRUE(
        attention_rows_reference({attention_args(s, s.cache->view(layer)), lists.data()}).ok());
    return out;
  }

 private:
  static RopeTable make_rope() {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    return std::move(*RopeTable::build(config, 20480));
  }
  /// Shows the raw query that a pass would have, which is query() rotated back.
  void show(PromptQueries& out, std::int32_t layer, std::int32_t position) {
    std::vector<float> raw = query(layer, position), attention(kQuery), lse(kHeads);
    AttentionArgs args{};
    std::vector<float> rounded(kQuery);
    std::transform(raw.begin(), raw.end(), rounded.begin(),
                   [](float x) { return bf16_to_f32(f32_to_bf16(x)); });
    args.q = rounded.data();
    args.query_positions = &position;
    args.rows = 1;
    args.ldq = args.ldo = kQuery;
    args.num_heads = kHeads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
    args.kv = cache_.view(layer);
    args.out = attention.data();
    args.lse = lse.data();
    ASSERT_TRUE(attention_reference(args).ok());
    rotate_back(raw, position);
    if (position % 4 == 1) lse.assign(kHeads, NAN);  // like a row that no higher layer needs
    LayerPass pass{};
    pass.compute = &host_compute();
    pass.layer = layer;
    pass.positions = std::span(&position, 1);
    pass.qkv.q = raw.data();
    pass.qkv.rows = 1;
    pass.qkv.ld = kQuery;
    pass.lse = lse.data();
    ASSERT_TRUE(out.after_attention(pass).ok());
  }
  void rotate_back(std::vector<float>& x, std::int32_t position) const {
    const float *cos = rope_.cos_row(position), *sin = rope_.sin_row(position);
    for (std::size_t h = 0; h < kHeads; ++h) {
      for (std::size_t c = 0; c < kDim / 2; ++c) {
        float &a = x[h * kDim + c], &b = x[h * kDim + c + kDim / 2];
        const float real = a * cos[c] + b * sin[c], imaginary = b * cos[c] - a * sin[c];
        a = real;
        b = imaginary;
      }
    }
  }

  PagePool pool_;
  WorkingCache cache_;
  RopeTable rope_;
};

/// A retriever over its own sequence.
struct RowDecoding {
  explicit RowDecoding(std::string_view name, RetrieverOptions given, std::int64_t device_bytes = 0,
                       std::int32_t first_seen = 0, TransferStreams* copies = nullptr)
      : device(device_bytes),
        retriever(std::move(*retrievers().make(name, PlugOptions(std::move(given))))),
        lane(copies) {
    prepared = prepare(first_seen);
  }
  ~RowDecoding() { retriever->synchronize(); }

  WantedQueries queries_wanted() const {
    const auto* watcher = capability<PromptWatcher>(*retriever);
    return watcher != nullptr ? watcher->queries_wanted(RowSequence::kPrompt) : WantedQueries{};
  }
  /// Prepares the retriever, or only begins to.
  Status prepare(std::int32_t first_seen = 0, bool whole = true) {
    const WantedQueries wanted = queries_wanted();
    if (wanted.count > 0) queries = sequence.queries(wanted.count, first_seen);
    SequenceContext context;
    context.compute = &host_compute();
    AssembledPrompt assembled;
    context.cache = &sequence.cache();
    assembled.queries = queries.get();
    context.device = &device;
    context.transfers = lane;
    assembled.num_tokens = RowSequence::kPrompt;
    context.num_layers = RowSequence::kLayers;
    context.num_heads = RowSequence::kHeads;
    context.num_kv_heads = RowSequence::kKvHeads;
    context.head_dim = RowSequence::kDim;
    return whole ? prepare_whole(*retriever, context, assembled)
                 : retriever->prepare(context, assembled);
  }

  /// Runs one token: its row, then every layer. Returns the layers' outputs. After each layer it
  /// calls `see(layer, query)`.
  template <class See>
  std::vector<std::vector<float>> token(See&& see) {
    EXPECT_TRUE(retriever->begin_step(7, sequence.num_rows()).ok());
    sequence.add_row(sequence.num_rows());
    std::vector<std::vector<float>> outs(RowSequence::kLayers);
    for (std::int32_t layer = 0; layer < RowSequence::kLayers; ++layer) {
      const auto q = sequence.query(layer, sequence.num_rows() - 1);
      const Status s = retriever->attend(
          sequence.step(layer, q, outs[static_cast<std::size_t>(layer)]));
      EXPECT_TRUE(s.ok()) << s.to_string();
      see(layer, q);
    }
    return outs;
  }
  std::vector<std::vector<float>> token() {
    return token([](std::int32_t, const std::vector<float>&) {});
  }

  RowSequence sequence;
  DevicePool device;
  std::unique_ptr<PromptQueries> queries;
  std::unique_ptr<Retriever> retriever;
  TransferStreams* const lane;  ///< null: copies run synchronously
  Status prepared;
};

inline std::vector<std::int32_t> rows_between(std::int64_t begin, std::int64_t end) {
  std::vector<std::int32_t> out;
  for (std::int64_t row = begin; row < end; ++row) out.push_back(static_cast<std::int32_t>(row));
  return out;
}

inline void expect_near(const std::vector<float>& actual, const std::vector<float>& expected,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_NEAR(actual[i], expected[i], tolerance) << what << " at " << i;
}

}  // namespace quire::testing
