#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "engine/select/block_scores.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

struct InfllmOptions {
  std::int64_t init_tokens = 128, local_tokens = 4096, unit_tokens = 128, units = 16;
};

OptionTable<InfllmOptions> option_table() {
  return {
      number_option("init_tokens", &InfllmOptions::init_tokens, {0, 1e6},
                    "first tokens of the first document, always kept"),
      number_option("local_tokens", &InfllmOptions::local_tokens, {0, 1e6},
                    "last tokens of the last documents, always kept"),
      number_option("unit_tokens", &InfllmOptions::unit_tokens, {1, 1e5}, "tokens chosen together"),
      number_option("units", &InfllmOptions::units, {0, 1e5}, "units kept besides"),
  };
}

/// A sequence of whole blocks of one context.
struct Unit {
  std::int32_t context = 0, first_block = 0, num_blocks = 0;
  std::int64_t num_tokens = 0;
};

/// A prompt divided by the window settings.
struct Cut {
  Selection::ContextBlocks always;  ///< init and local blocks, always kept
  std::vector<Unit> units;          ///< all other blocks, in prompt order
  std::int64_t local_tokens = 0;
  std::int64_t budget = 0;  ///< tokens for units
};

/// InfLLM over the concatenated documents (Xiao et al., arXiv 2402.04617, section 3, Multi-InfLLM).
/// It keeps the first tokens, the last ones, and the units that score best for the question's mean
/// query, with one choice for all heads of a layer. Units are whole blocks of one document. A unit
/// is represented by its blocks' mean keys, which sketches hold, instead of the four keys with the
/// most local attention, which are not stored.
class InfllmSelector final : public Selector {
 public:
  explicit InfllmSelector(const InfllmOptions& options) : options_(options) {}

  bool needs_sketches(const SelectionInput& input) const override {
    return decides(input, cut(input));
  }

  std::optional<Selection> query_pass_blocks(const SelectionInput& input) const override {
    Cut c = cut(input);
    if (!decides(input, c)) return std::nullopt;
    return Selection::shared(input.num_layers, std::move(c.always));
  }

  Result<Selection> select(const SelectionInput& input) const override {
    const Cut c = cut(input);
    if (!decides(input, c)) return Selection::shared(input.num_layers, with_units(c, c.units));
    std::vector<Selection::ContextBlocks> kept;
    Selection out;
    out.scores.resize(input.contexts.size());
    for (std::size_t i = 0; i < input.contexts.size(); ++i)
      out.scores[i].resize(at(input.contexts[i].num_blocks));
    std::vector<float> scores(c.units.size());
    for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
      for (std::size_t u = 0; u < c.units.size(); ++u) {
        // Without a question the latest units are kept, as a longer local window would.
        scores[u] = static_cast<float>(u);
        if (input.query_pass != nullptr) {
          QUIRE_ASSIGN_OR_RETURN(scores[u], unit_score(input, c, c.units[u], layer));
        }
        for (std::int32_t b = 0; b < c.units[u].num_blocks; ++b) {
          out.scores[at(c.units[u].context)][at(c.units[u].first_block + b)] +=
              scores[u] / static_cast<float>(input.num_layers);
        }
      }
      kept.push_back(with_units(c, best(c, scores)));
    }
    auto notes = std::move(out.scores);
    out = Selection::per_layer(std::move(kept));
    out.scores = std::move(notes);
    return out;
  }

 private:
  Cut cut(const SelectionInput& input) const {
    std::int64_t total = 0;
    for (const SelectableContext& c : input.contexts) total += c.num_blocks > 0 ? c.num_tokens : 0;
    std::int64_t init = options_.init_tokens;
    const std::int64_t unit_tokens = options_.unit_tokens;
    Cut out;
    out.local_tokens = options_.local_tokens;
    out.budget = options_.units * unit_tokens;
    if (input.keep_ratio) {
      // The default sizes keep the published proportions: 128 init and 2048 unit tokens to 4096
      // local ones.
      const double wanted = *input.keep_ratio * static_cast<double>(total);
      const double scale = wanted / static_cast<double>(std::max<std::int64_t>(
                                        1, init + out.local_tokens + out.budget));
      init = static_cast<std::int64_t>(scale * static_cast<double>(init));
      out.local_tokens = static_cast<std::int64_t>(scale * static_cast<double>(out.local_tokens));
      // Units get what is left, so that rounding takes nothing from what was asked for.
      out.budget = static_cast<std::int64_t>(std::floor(wanted + 1e-6)) - init - out.local_tokens;
    }
    std::int64_t from = 0;
    for (std::size_t i = 0; i < input.contexts.size(); ++i) {
      const SelectableContext& c = input.contexts[i];
      auto& always = out.always.emplace_back();
      bool open = false;
      for (std::int32_t b = 0; b < c.num_blocks; ++b) {
        const std::int64_t first = from + std::int64_t{b} * c.block_tokens;
        const std::int64_t end = std::min(first + c.block_tokens, from + c.num_tokens);
        // The very last block always stays, as the answer begins after it.
        if (first < init || end > total - out.local_tokens || end == total) {
          always.push_back(b);
          open = false;
          continue;
        }
        if (!open || out.units.back().num_tokens + (end - first) >
                         std::max<std::int64_t>(unit_tokens, c.block_tokens)) {
          out.units.push_back({static_cast<std::int32_t>(i), b, 0, 0});
        }
        open = true;
        ++out.units.back().num_blocks;
        out.units.back().num_tokens += end - first;
      }
      from += c.num_blocks > 0 ? c.num_tokens : 0;
    }
    return out;
  }

  static bool decides(const SelectionInput&, const Cut& c) {
    std::int64_t tokens = 0;
    for (const Unit& u : c.units) tokens += u.num_tokens;
    return tokens > c.budget;
  }

  /// Context keys carry no position, and the query has the single angle local_tokens. As means in
  /// sketches are rotated to their place in the document, the query is also rotated to each block's
  /// middle.
  static Result<float> unit_score(const SelectionInput& input, const Cut& c, const Unit& unit,
                                  std::int32_t layer) {
    const SketchView* sketch = input.sketch ? input.sketch(unit.context) : nullptr;
    if (sketch == nullptr) return 0.0f;
    const std::int32_t group = input.num_heads / input.num_kv_heads, dim = input.head_dim;
    const std::size_t width = at(std::int64_t{input.num_heads} * dim);
    const auto query = std::span(input.query_pass->mean_query).subspan(at(layer) * width, width);
    std::vector<float> turned(width), mean(at(std::int64_t{input.num_kv_heads} * dim));
    const std::int64_t longest = input.rope->max_positions() - 1 - sketch->num_tokens();
    float sum = 0;
    for (std::int32_t b = unit.first_block; b < unit.first_block + unit.num_blocks; ++b) {
      sketch->mean(layer, b, mean);
      const std::int64_t middle = std::int64_t{b} * sketch->block_tokens() +
                                  sketch->block_tokens() / 2;
      const auto where = static_cast<std::int32_t>(
          std::min(std::max<std::int64_t>(0, std::min(c.local_tokens, longest)) + middle,
                   input.rope->max_positions() - 1));
      QUIRE_RETURN_IF_ERROR(rope_rotate(*input.rope, {.x = query.data(),
                                                      .out = turned.data(),
                                                      .positions = &where,
                                                      .rows = 1,
                                                      .num_heads = input.num_heads,
                                                      .ldx = static_cast<std::int64_t>(width),
                                                      .ldo = static_cast<std::int64_t>(width)}));
      for (std::int32_t h = 0; h < input.num_heads; ++h) {
        sum += dot(std::span(turned).subspan(at(std::int64_t{h} * dim), at(dim)),
                   std::span(mean).subspan(at(std::int64_t{h / group} * dim), at(dim)));
      }
    }
    return std::isnan(sum) ? -std::numeric_limits<float>::infinity()
                           : sum / static_cast<float>(unit.num_blocks);
  }

  static std::vector<Unit> best(const Cut& c, const std::vector<float>& scores) {
    std::vector<std::size_t> order(scores.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&scores](std::size_t a, std::size_t b) {
      return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
    });
    std::vector<Unit> chosen;
    std::int64_t left = c.budget;
    for (const std::size_t u : order) {
      if (c.units[u].num_tokens > left) break;
      left -= c.units[u].num_tokens;
      chosen.push_back(c.units[u]);
    }
    return chosen;
  }

  static Selection::ContextBlocks with_units(const Cut& c, const std::vector<Unit>& units) {
    Selection::ContextBlocks kept = c.always;
    for (const Unit& u : units) {
      for (std::int32_t b = 0; b < u.num_blocks; ++b)
        kept[at(u.context)].push_back(u.first_block + b);
    }
    for (auto& blocks : kept) std::sort(blocks.begin(), blocks.end());
    return kept;
  }

  const InfllmOptions options_;
};

}  // namespace

void register_infllm(PlugRegistry<Selector>& selectors) {
  selectors.add("infllm", option_table(), [](const InfllmOptions& options) {
    return std::make_unique<InfllmSelector>(options);
  });
}

}  // namespace quire
