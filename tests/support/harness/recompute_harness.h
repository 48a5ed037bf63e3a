/// Documents prefilled alone and placed block by block in a working cache, without the pipeline.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/recompute/recomputer.h"
#include "kernels/rows/kv.h"
#include "tests/support/model_files.h"

namespace quire::testing {

using Ids = std::vector<std::int32_t>;

/// A model family at test size.
struct Family {
  const char *name, *fields;  ///< fields of config.json that replace those of the tiny Llama
  std::vector<std::string> replaced;
};

inline const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies = {
      {"llama", "\"num_hidden_layers\": 4", {"num_hidden_layers"}},
      {"llama3",
       "\"num_hidden_layers\": 4, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
       "\"low_freq_factor\": 1.0, "
       "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}, "
       "\"tie_word_embeddings\": true",
       {"num_hidden_layers", "tie_word_embeddings"}},
      {"mistral",
       "\"num_hidden_layers\": 4, \"architectures\": [\"MistralForCausalLM\"], \"model_type\": "
       "\"mistral\", \"head_dim\": 16",
       {"num_hidden_layers", "architectures", "model_type"}},
      {"qwen2",
       "\"num_hidden_layers\": 4, \"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": "
       "\"qwen2\", \"rope_scaling\": {\"rope_type\": "
       "\"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 64}",
       {"num_hidden_layers", "architectures", "model_type"}},
      {"qwen3",
       "\"num_hidden_layers\": 4, \"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": "
       "\"qwen3\", \"head_dim\": 16",
       {"num_hidden_layers", "architectures", "model_type"}},
  };
  return kFamilies;
}

inline std::unique_ptr<Model> family_model(const Family& family, DType kv_dtype = DType::kF32,
                                           WeightFormat weights = WeightFormat::kF32) {
  const auto config = parse_model_config(tiny_config_json(family.fields, family.replaced));
  EXPECT_TRUE(config.ok()) << family.name << ": " << config.status().to_string();
  return std::move(*make_random_model(*config, {.weights = weights, .kv_dtype = kv_dtype}, 5));
}

/// Raw KV of blocks; it returns only blocks that were "loaded".
class FakeStore final : public StoredKv {
 public:
  struct Block {
    std::vector<std::byte> bytes;
    RawKvView view;
  };
  /// Keyed by (context, block, layer).
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, Block> blocks;
  std::set<std::tuple<std::int32_t, std::int32_t, std::int32_t>> loaded;
  mutable std::int64_t reads = 0;

  Result<RawKvView> block(std::int32_t context, std::int32_t block,
                          std::int32_t layer) const override {
    ++reads;
    if (!loaded.contains({context, block, layer})) return Status::not_found("not loaded");
    return blocks.at({context, block, layer}).view;
  }
  void load(const Selection& selection, std::int32_t num_contexts) {
    for (std::int32_t layer = 0; layer < selection.num_layers(); ++layer) {
      for (std::int32_t c = 0; c < num_contexts; ++c) {
        for (const std::int32_t b : selection.kept(layer, c)) loaded.insert({c, b, layer});
      }
    }
  }
};

/// The cache by layer and position: K then V of each row in f32, exactly as stored there.
using CacheContent = std::vector<std::map<std::int32_t, std::vector<float>>>;

inline CacheContent content(const WorkingCache& cache) {
  CacheContent out(static_cast<std::size_t>(cache.num_layers()));
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    const KvView v = cache.view(layer);
    for (std::int64_t r = 0; r < v.num_rows; ++r) {
      auto& row = out[static_cast<std::size_t>(layer)][v.positions[r]];
      EXPECT_TRUE(row.empty()) << "position " << v.positions[r] << " lies twice in layer " << layer;
      for (int kv = 0; kv < 2; ++kv) {
        for (int head = 0; head < v.num_kv_heads; ++head) {
          const auto* base = static_cast<const char*>(v.pages[r / kPageTokens]) + kv * v.kv_stride +
                             head * v.head_stride + (r % kPageTokens) * v.token_stride;
          for (int c = 0; c < v.head_dim; ++c) row.push_back(load_f32(base, v.dtype, c));
        }
      }
    }
  }
  return out;
}

/// Returns the largest difference divided by the largest value of the layer. Layers must hold the
/// same positions.
inline double difference(const CacheContent& a, const CacheContent& b) {
  double worst = 0;
  EXPECT_EQ(a.size(), b.size());
  for (std::size_t layer = 0; layer < a.size(); ++layer) {
    double diff = 0, top = 1e-30;
    EXPECT_EQ(a[layer].size(), b[layer].size()) << "layer " << layer;
    for (const auto& [position, row] : a[layer]) {
      const auto other = b[layer].find(position);
      if (other == b[layer].end()) {
        ADD_FAILURE() << "position " << position << " is missing in layer " << layer;
        return 1e9;
      }
      for (std::size_t i = 0; i < row.size(); ++i) {
        if (!(std::isfinite(row[i]) && std::isfinite(other->second[i]))) return 1e9;
        diff = std::max(diff, std::abs(static_cast<double>(row[i]) - other->second[i]));
        top = std::max(top, std::abs(static_cast<double>(other->second[i])));
      }
    }
    worst = std::max(worst, diff / top);
  }
  return worst;
}

/// A prompt of [BOS] and documents, each prefilled alone after a BOS.
class Bed {
 public:
  static constexpr std::int32_t kBlock = 4;

  Bed(std::unique_ptr<Model> model, std::vector<Ids> docs, std::int64_t max_bytes = 0)
      : model_(std::move(model)),
        docs_(std::move(docs)),
        pool_(
            {model_->config().num_kv_heads, model_->config().head_dim, model_->options().kv_dtype},
            0),
        cache_pool_(
            {model_->config().num_kv_heads, model_->config().head_dim, model_->options().kv_dtype},
            max_bytes),
        cache_(cache_pool_, model_->config().num_layers) {
    std::int64_t offset = 1;
    bool first = true;
    for (std::size_t i = 0; i < docs_.size(); ++i) {
      const auto n = static_cast<std::int32_t>(docs_[i].size());
      contexts_.push_back(
          {docs_[i], offset, kBlock, (n + kBlock - 1) / kBlock, n == 0 || first, {}});
      if (n > 0) {
        first = false;
        store(static_cast<std::int32_t>(i), docs_[i]);
      }
      offset += n;
    }
  }

  Model& model() { return *model_; }
  std::int32_t num_layers() const { return model_->config().num_layers; }
  std::int32_t num_contexts() const { return static_cast<std::int32_t>(docs_.size()); }
  std::int32_t blocks(std::int32_t c) const {
    return contexts_[static_cast<std::size_t>(c)].num_blocks;
  }
  const std::vector<Ids>& docs() const { return docs_; }
  std::vector<RecomputableContext>& contexts() { return contexts_; }
  FakeStore& stored() { return stored_; }
  WorkingCache& cache() { return cache_; }
  PagePool& cache_pool() { return cache_pool_; }

  Selection everything() const {
    Selection::ContextBlocks kept;
    for (std::int32_t c = 0; c < num_contexts(); ++c) {
      kept.emplace_back(static_cast<std::size_t>(blocks(c)));
      std::iota(kept.back().begin(), kept.back().end(), 0);
    }
    return Selection::shared(num_layers(), std::move(kept));
  }
  /// Returns anchors and, with this probability, every other block of a layer.
  Selection random_selection(std::mt19937& rng, double share) const {
    std::vector<Selection::ContextBlocks> layers(static_cast<std::size_t>(num_layers()));
    std::bernoulli_distribution keep(share);
    for (auto& layer : layers) {
      for (std::int32_t c = 0; c < num_contexts(); ++c) {
        layer.emplace_back();
        for (std::int32_t b = 0; b < blocks(c); ++b) {
          if (b == 0 || b >= blocks(c) - 2 || keep(rng)) layer.back().push_back(b);
        }
      }
    }
    return Selection::per_layer(std::move(layers));
  }

  /// Empties the cache and places [BOS] and the selected blocks in it.
  void place(const Selection& selection) {
    cache_.truncate_all(0);
    run(cache_, {1}, {0});
    for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
      for (std::int32_t c = 0; c < num_contexts(); ++c) {
        for (const std::int32_t b : selection.kept(layer, c)) put(layer, c, b, -1);
      }
    }
    stored_.loaded.clear();
    stored_.load(selection, num_contexts());
  }
  /// Writes the stored blocks of one context into the cache again.
  void place_again(const Selection& selection, std::int32_t context) {
    for (std::int32_t layer = 0; layer < num_layers(); ++layer) {
      for (const std::int32_t b : selection.kept(layer, context))
        put(layer, context, b, cache_.find_row(layer, position(context, b * kBlock)));
    }
  }
  std::int32_t position(std::int32_t context, std::int32_t token) const {
    const RecomputableContext& c = contexts_[static_cast<std::size_t>(context)];
    if (c.block_position.empty()) return static_cast<std::int32_t>(c.offset) + token;
    return c.block_position[static_cast<std::size_t>(token / kBlock)] + token % kBlock;
  }
  /// Stores the KV of a prefill of other tokens.
  void store(std::int32_t context, const Ids& doc) {
    Ids ids = {1};
    ids.insert(ids.end(), doc.begin(), doc.end());
    Ids positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    WorkingCache alone(pool_, num_layers());
    Capture capture(*this, context);
    run(alone, ids, positions, &capture);
  }

  RecomputeInput input(const Selection& selection) {
    RecomputeInput in;
    in.contexts = contexts_;
    in.num_layers = num_layers();
    in.num_heads = model_->config().num_heads;
    in.num_kv_heads = model_->config().num_kv_heads;
    in.head_dim = model_->config().head_dim;
    in.selection = &selection;
    in.stored = &stored_;
    in.cache = &cache_;
    in.rope = &model_->rope();
    in.question = question_;
    in.question_position = static_cast<std::int32_t>(end_of_documents());
    return in;
  }
  /// Loads what the recomputer needs, places the selection and runs the pass to its end. Returns
  /// nothing if there is no pass.
  std::optional<RecomputeReport> recompute(const Recomputer& recomputer, const Selection& selection,
                                           std::int64_t chunk = 1000,
                                           const std::function<void(RecomputeInput&)>& edit = {}) {
    place(selection);
    RecomputeInput in = input(selection);
    if (edit) edit(in);
    if (const auto more = recomputer.blocks_to_load(in)) stored_.load(*more, num_contexts());
    auto pass = recomputer.prepare(in);
    EXPECT_TRUE(pass.ok()) << pass.status().to_string();
    if (!pass.ok() || *pass == nullptr) return std::nullopt;
    return finish(**pass, chunk);
  }
  RecomputeReport finish(RecomputePass& pass, std::int64_t chunk) {
    while (!pass.done()) {
      const Status status = step(pass, chunk);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    return pass.report();
  }
  Status step(RecomputePass& pass, std::int64_t chunk) {
    return pass.step(*model_, cache_, workspace_, chunk);
  }

  /// Prefills the concatenation in one pass, into a separate cache.
  CacheContent full() {
    WorkingCache cache(pool_, num_layers());
    Ids ids = {1};
    for (const Ids& d : docs_) ids.insert(ids.end(), d.begin(), d.end());
    Ids positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    run(cache, ids, positions);
    return content(cache);
  }
  std::int64_t end_of_documents() const {
    std::int64_t end = 1;
    for (const Ids& d : docs_) end += static_cast<std::int64_t>(d.size());
    return end;
  }
  /// Returns the logits of the last token of a question after `cache`.
  std::vector<float> ask(WorkingCache& cache, const Ids& question) {
    Ids positions(question.size());
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(end_of_documents()));
    return run(cache, question, positions);
  }
  std::vector<float> ask_full(const Ids& question) {
    WorkingCache cache(pool_, num_layers());
    Ids ids = {1};
    for (const Ids& d : docs_) ids.insert(ids.end(), d.begin(), d.end());
    Ids positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    run(cache, ids, positions);
    return ask(cache, question);
  }
  std::vector<float> run(WorkingCache& cache, const Ids& ids, const Ids& positions,
                         ForwardHook* hook = nullptr) {
    std::vector<float> logits(static_cast<std::size_t>(model_->config().vocab_size));
    const auto last = static_cast<std::int32_t>(ids.size()) - 1;
    ForwardRequest request{};
    request.token_ids = ids;
    request.positions = positions;
    request.cache = &cache;
    request.hook = hook;
    request.logit_rows = std::span(&last, 1);
    request.logits = logits.data();
    const Status status = forward(*model_, request, workspace_);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return logits;
  }

 private:
  class Capture final : public ForwardHook {
   public:
    Capture(Bed& bed, std::int32_t context) : bed_(bed), context_(context) {}
    Status after_projection(LayerPass& p) override {
      const ModelConfig& c = bed_.model_->config();
      const DType dtype = bed_.model_->options().kv_dtype;
      const std::int64_t row = c.head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
      for (std::int64_t first = 1, b = 0; first < p.qkv.rows; first += kBlock, ++b) {
        const std::int64_t n = std::min<std::int64_t>(kBlock, p.qkv.rows - first);
        auto& block = bed_.stored_.blocks[{context_, static_cast<std::int32_t>(b), p.layer}];
        block.bytes.resize(static_cast<std::size_t>(2 * n * c.num_kv_heads * row));
        QUIRE_RETURN_IF_ERROR(
            kv_pack_reference({p.qkv.k + first * p.qkv.ld, p.qkv.v + first * p.qkv.ld, n, p.qkv.ld,
                               p.qkv.ld, c.num_kv_heads, c.head_dim, dtype, block.bytes.data()}));
        block.view = {block.bytes.data(), n, dtype, 2 * n * row, n * row, row};
      }
      return {};
    }

   private:
    Bed& bed_;
    std::int32_t context_;
  };

  void put(std::int32_t layer, std::int32_t c, std::int32_t b, std::int64_t row) {
    const RawKvView& view = stored_.blocks.at({c, b, layer}).view;
    if (row < 0) {
      Ids positions(static_cast<std::size_t>(view.num_rows));
      std::iota(positions.begin(), positions.end(), position(c, b * kBlock));
      auto added = cache_.add_rows(layer, positions);
      ASSERT_TRUE(added.ok()) << added.status().to_string();
      row = *added;
    }
    ASSERT_TRUE(cache_.place(layer, model_->rope(), view, row).ok());
  }

  std::unique_ptr<Model> model_;
  std::vector<Ids> docs_;
  const Ids question_ = {5, 9, 4, 31, 12};
  PagePool pool_, cache_pool_;
  WorkingCache cache_;
  FakeStore stored_;
  std::vector<RecomputableContext> contexts_;
  ForwardWorkspace workspace_;
};

inline std::vector<Ids> random_docs(std::mt19937& rng, std::initializer_list<std::size_t> lengths) {
  std::vector<Ids> docs;
  for (const std::size_t n : lengths) {
    docs.emplace_back(n);
    for (auto& id : docs.back()) id = static_cast<std::int32_t>(3 + rng() % 37);
  }
  return docs;
}

inline PlugOptions options(std::map<std::string, std::string, std::less<>> given) {
  return PlugOptions(std::move(given));
}

}  // namespace quire::testing
