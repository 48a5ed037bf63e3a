/// Makes sketches with given contents, for tests of selectors.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/record/sketch.h"
#include "engine/select/selector.h"

namespace quire::testing {

struct SketchShape {
  std::int32_t num_layers = 2, num_heads = 1, num_kv_heads = 1, head_dim = 8, rotary_dim = 2,
               block_tokens = 16;
};

/// Documents with their records, and a selection input over them.
class Documents {
 public:
  explicit Documents(const SketchShape& shape) : shape_(shape) {
    RopeConfig config;
    config.head_dim = shape.head_dim;
    config.rotary_dim = shape.rotary_dim;
    rope_ = *RopeTable::build(config, 8192);
  }

  /// Adds a document. `key(layer, block, channel)` is the raw key of all tokens of a block, channel
  /// over [num_kv_heads * head_dim].
  template <class Key, class Stats, class Local>
  void add(std::int64_t num_tokens, Key&& key, Stats&& stats, Local&& local) {
    const KvLayout layout({shape_.num_layers, shape_.num_kv_heads, shape_.head_dim, DType::kF32},
                          num_tokens, shape_.block_tokens);
    std::vector<std::vector<std::byte>> values;
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        auto& value = values.emplace_back(static_cast<std::size_t>(layout.value_bytes(b, g)));
        for (std::int32_t l = 0; l < layout.layers_in(g); ++l) {
          const std::int32_t layer = g * layout.layers_per_group() + l;
          auto* x = reinterpret_cast<float*>(value.data() + layout.layer_offset(b, layer));
          for (std::int32_t h = 0; h < shape_.num_kv_heads; ++h) {
            for (std::int32_t t = 0; t < layout.tokens_in(b); ++t) {
              for (std::int32_t c = 0; c < shape_.head_dim; ++c) {
                x[(std::int64_t{2} * h * layout.tokens_in(b) + t) * shape_.head_dim + c] = key(
                    layer, b, h * shape_.head_dim + c);
              }
            }
          }
        }
      }
    }
    std::vector<float> local_query;
    std::vector<BlockStats> block_stats;
    for (std::int32_t l = 0; l < shape_.num_layers; ++l) {
      for (std::int32_t c = 0; c < shape_.num_heads * shape_.head_dim; ++c)
        local_query.push_back(local(l, c));
      for (std::int32_t b = 0; b < layout.num_blocks(); ++b) block_stats.push_back(stats(l, b));
    }
    SketchInput input;
    input.layout = &layout;
    input.num_heads = shape_.num_heads;
    input.values = values;
    input.local_query = local_query;
    input.stats = block_stats;
    input.rope = &rope_;
    auto record = build_sketch(input);
    ASSERT_TRUE(record.ok()) << record.status().to_string();
    records_.push_back(std::move(*record));
    contexts_.push_back({num_tokens, end_, shape_.block_tokens, layout.num_blocks(), false});
    end_ += num_tokens;
  }
  /// Adds a document with random contents.
  void add_random(std::int64_t num_tokens, std::uint32_t seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
    add(
        num_tokens, [&](int, int, int) { return normal(rng); },
        [&](int, int b) {
          return BlockStats{uniform(rng), uniform(rng), b * shape_.block_tokens};
        },
        [&](int, int) { return normal(rng); });
  }
  /// Loses the sketch of a document.
  void lose(std::size_t document) { records_[document].clear(); }

  SelectionInput input() {
    views_.clear();
    for (const auto& record : records_) {
      views_.emplace_back();
      if (!record.empty()) views_.back() = *SketchView::parse(record);
    }
    SelectionInput in;
    in.contexts = contexts_;
    in.num_layers = shape_.num_layers;
    in.num_heads = shape_.num_heads;
    in.num_kv_heads = shape_.num_kv_heads;
    in.head_dim = shape_.head_dim;
    in.rope = &rope_;
    in.stable_layers = {0, shape_.num_layers - 1};
    in.sketch = [this](std::int32_t i) {
      return views_[static_cast<std::size_t>(i)] ? &*views_[static_cast<std::size_t>(i)] : nullptr;
    };
    return in;
  }
  /// Returns the question: one mean query for each layer.
  QueryPassResult question(const std::vector<float>& mean_query) const {
    QueryPassResult q;
    q.mean_query = mean_query;
    q.last_position = end_ + 5;
    for (const auto& c : contexts_) q.context_position.push_back(c.offset);
    return q;
  }
  const std::vector<SelectableContext>& contexts() const { return contexts_; }
  const RopeTable& rope() const { return rope_; }
  const SketchShape& shape() const { return shape_; }

 private:
  SketchShape shape_;
  RopeTable rope_;
  std::int64_t end_ = 1;
  std::vector<std::vector<std::byte>> records_;
  std::vector<std::optional<SketchView>> views_;
  std::vector<SelectableContext> contexts_;
};

inline PlugOptions options_of(std::map<std::string, std::string, std::less<>> given) {
  return PlugOptions(std::move(given));
}

inline std::vector<std::int32_t> kept(const Selection& s, std::int32_t layer,
                                      std::int32_t context) {
  const auto blocks = s.kept(layer, context);
  return {blocks.begin(), blocks.end()};
}

}  // namespace quire::testing
