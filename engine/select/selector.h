/// Socket: which (context, block) pairs exist in the working cache, per layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/plug/plug_options.h"
#include "engine/record/sketch.h"
#include "engine/record/stable_layers.h"
#include "engine/select/selection.h"
#include "kernels/rope.h"

namespace quire {

/// One context that may be loaded block by block.
struct SelectableContext {
  std::int64_t num_tokens = 0;
  std::int64_t offset = 0;  ///< assembled position of its first token, in global positions
  std::int32_t block_tokens = 0, num_blocks = 0;
  bool exact = false;  ///< its stored KV equals its KV in the concatenation
  std::span<const std::int32_t> token_ids = {};  ///< [num_tokens]; empty where nobody can say
};

/// What the question looked like to the model when it was run over some blocks.
struct QueryPassResult {
  /// [num_layers, num_heads * head_dim], mean raw q of the question's tokens
  std::vector<float> mean_query;
  std::int64_t last_position = 0;              ///< where its last token stood in the run
  std::vector<std::int64_t> context_position;  ///< [context] where each context's first token stood
};

/// Scores blocks where the model computes: out of the way of the host, which waits once for all
/// layers.
class BlockScorer {
 public:
  struct Shape {
    std::int32_t num_heads = 0, num_kv_heads = 0;
  };
  /// The blocks of one context in one layer against a query at a distance from the context's start,
  /// as SamkvScores has them.
  struct Item {
    std::int32_t context = 0, layer = 0;
    const SketchView* sketch = nullptr;
    std::span<const float> query;  ///< [num_heads * head_dim] raw
    std::int32_t distance = 0;
    std::span<float> score, comparable;  ///< [num_blocks], overwritten
  };
  virtual ~BlockScorer() = default;
  /// False: it has no room for the contexts' means; nothing was scored, and the caller does it
  /// itself. Errors: kDeviceLost, kInternal.
  virtual Result<bool> score(const Shape& shape, std::span<const Item> items) = 0;
};

struct SelectionInput {
  /// Only those that can be selected from; may be empty
  std::span<const SelectableContext> contexts;
  std::span<const std::int32_t> question;  ///< token ids behind the documents; may be empty
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  std::optional<double> keep_ratio;  ///< asked for, if any
  PlugOptions options;               ///< checked against options() of the selector
  const RopeTable* rope = nullptr;
  /// The context's sketch. Null: lost, or this selector did not ask for sketches (needs_sketches).
  std::function<const SketchView*(std::int32_t context)> sketch;
  /// Null unless query_pass_blocks() asked for one, and where there is no question
  const QueryPassResult* query_pass = nullptr;
  BlockScorer* scorer = nullptr;  ///< null: blocks are scored on the host
  StableLayers stable_layers;     ///< N* of the model
  /// [context][token] what a draft's last rows pay to it; empty: there is no draft, or it did not
  /// answer in time. A context's may be empty.
  std::span<const std::span<const float>> draft_scores = {};
};

/// Stateless and deterministic: the same input gives the same selection. Threads: any.
/// Every selector keeps all blocks when its budget covers them and accepts zero contexts and
/// contexts of one block.
class Selector {
 public:
  virtual ~Selector() = default;
  virtual std::string_view name() const = 0;
  virtual std::span<const PlugOption> options() const { return {}; }
  /// True: select() reads sketches, so the pipeline loads them first.
  virtual bool needs_sketches(const SelectionInput&) const { return false; }
  /// Blocks over which the pipeline runs the question before select(); nothing: no such pass.
  /// Static selectors (neither sketches nor a pass) are evaluated while planning, without the
  /// model.
  virtual std::optional<Selection> query_pass_blocks(const SelectionInput&) const {
    return std::nullopt;
  }
  /// True: select() uses draft_scores, so the pipeline has the draft read the prompt.
  virtual bool wants_draft_scores(const SelectionInput&) const { return false; }
  virtual Result<Selection> select(const SelectionInput& input) const = 0;
};

/// Plugs of this build, by name.
std::vector<std::string> selector_names();
/// Errors: kInvalidArgument naming the known ones.
Result<std::unique_ptr<Selector>> make_selector(std::string_view name);

/// First block and last two of a context of `num_blocks`, each once.
std::vector<std::int32_t> anchor_blocks(std::int32_t num_blocks);

std::unique_ptr<Selector> make_all_selector();
std::unique_ptr<Selector> make_anchors_selector();
std::unique_ptr<Selector> make_samkv_selector();
std::unique_ptr<Selector> make_infllm_selector();
std::unique_ptr<Selector> make_words_selector();

}  // namespace quire
