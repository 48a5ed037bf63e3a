/// This socket decides which (context, block) pairs are in the working cache, per layer.
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
#include "engine/chat/token_words.h"
#include "engine/plug/plug_registry.h"
#include "engine/record/selection_heads.h"
#include "engine/record/selection_keys.h"
#include "engine/record/sketch.h"
#include "engine/record/stable_layers.h"
#include "engine/select/selection.h"
#include "kernels/rows/rope.h"

namespace quire {

/// A context that may be loaded block by block.
struct SelectableContext {
  std::int64_t num_tokens = 0;
  std::int64_t offset = 0;  ///< assembled position of its first token, in global positions
  std::int32_t block_tokens = 0, num_blocks = 0;
  bool exact = false;  ///< its stored KV equals its KV in the concatenation
  std::span<const std::int32_t> token_ids = {};  ///< [num_tokens]; empty if unknown
  /// It is the next chunk of the document that the context before it belongs to.
  bool continues = false;
  std::string_view title = {};  ///< of its document; empty: it has none
};

/// The question's words in the calibrated heads, after a pass over the prompt without documents.
struct HeadQueries {
  std::vector<float> queries;  ///< [heads, num_words, head_dim] before RoPE
  std::vector<float> outside;  ///< [heads, num_words] log-sum-exp of attention in that pass
  std::int64_t num_words = 0;
  std::int64_t first_position = 0;  ///< assembled position of the first word
};

/// Result of running the question over some blocks (the query pass).
struct QueryPassResult {
  std::optional<HeadQueries> heads;  ///< set instead of mean_query if wants_head_queries()
  /// [num_layers, num_heads * head_dim], mean raw q of the question's tokens
  std::vector<float> mean_query;
  std::int64_t last_position = 0;  ///< position of the question's last token in the pass
  std::vector<std::int64_t> context_position;  ///< [context] position of each context's first token
};

/// Scores blocks on the compute device asynchronously; the host synchronizes once for all layers.
class BlockScorer {
 public:
  struct Shape {
    std::int32_t num_heads = 0, num_kv_heads = 0;
  };
  /// Scores the blocks of one context in one layer against a query at a distance from the context's
  /// start. SamkvScores defines the scores.
  struct Item {
    std::int32_t context = 0, layer = 0;
    const SketchView* sketch = nullptr;
    std::span<const float> query;  ///< [num_heads * head_dim] raw
    std::int32_t distance = 0;
    std::span<float> score, comparable;  ///< [num_blocks], overwritten
  };
  virtual ~BlockScorer() = default;
  /// Scores all items. Returns false, with nothing scored, if the contexts' means do not fit; the
  /// caller then scores on the host. Errors: kDeviceLost, kInternal.
  virtual Result<bool> score(const Shape& shape, std::span<const Item> items) = 0;
};

struct SelectionInput {
  /// The contexts that can be selected from; may be empty.
  std::span<const SelectableContext> contexts;
  std::span<const std::int32_t> question;  ///< token ids after the documents; may be empty
  /// The part of `question` that is the question itself, without template and instruction; empty:
  /// unknown.
  std::span<const std::int32_t> question_words = {};
  std::int32_t num_layers = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  /// Returns the words of a text that is given as tokens. Null: there is no vocabulary, and each
  /// token counts as a word.
  std::function<std::vector<TokenWord>(std::span<const std::int32_t> ids)> words;
  /// Returns the words by which texts name a document of this title. Null: titles are not read.
  std::function<std::vector<std::string>(std::string_view title)> title_words;
  std::optional<double> keep_ratio;  ///< as requested, if any
  const RopeTable* rope = nullptr;
  const SelectionHeads* heads = nullptr;  ///< null: the model is not calibrated
  /// Returns a context's keys in those heads. Null: the selector did not request them
  /// (wants_head_queries).
  std::function<const SelectionKeysView*(std::int32_t context)> selection_keys;
  /// Returns a context's sketch. Null: lost, or the selector did not request sketches
  /// (needs_sketches).
  std::function<const SketchView*(std::int32_t context)> sketch;
  /// Result of the query pass; null if query_pass_blocks() requested none or there is no question.
  const QueryPassResult* query_pass = nullptr;
  BlockScorer* scorer = nullptr;  ///< null: blocks are scored on the host
  StableLayers stable_layers;     ///< the stable layers N* of the model
  /// Attention that a draft's last rows pay to each token, [context][token]. Empty: there is no
  /// draft, or it did not answer in time; a single context's entry may be empty too.
  std::span<const std::span<const float>> draft_scores = {};
};

/// Selects blocks; stateless and deterministic: equal input gives an equal selection. It is made
/// with its options. Threads: any.
///
/// Every selector keeps all blocks if its budget covers them, and accepts zero contexts and
/// contexts of one block.
class Selector : public NamedPlug<Selector> {
 public:
  virtual ~Selector() = default;
  /// Returns true if select() reads sketches, so that the pipeline loads them first.
  virtual bool needs_sketches(const SelectionInput&) const { return false; }
  /// Returns the blocks that the pipeline runs the question over before select(); none: no query
  /// pass. Static selectors (no sketches, no query pass) are evaluated while planning, without the
  /// model.
  virtual std::optional<Selection> query_pass_blocks(const SelectionInput&) const {
    return std::nullopt;
  }
  /// Returns true if select() reads the contexts' keys in the calibrated heads and the question's
  /// queries there. The query pass then runs the prompt without documents, and only up to the last
  /// such layer; query_pass_blocks() must name no block.
  virtual bool wants_head_queries(const SelectionInput&) const { return false; }
  /// Returns true if what select() keeps gains nothing from being computed again. It is then used
  /// as stored, unless the request says otherwise.
  virtual bool keeps_as_stored(const SelectionInput&) const { return false; }
  /// Returns true if select() uses draft_scores, so that the pipeline has the draft read the
  /// prompt.
  virtual bool wants_draft_scores(const SelectionInput&) const { return false; }
  virtual Result<Selection> select(const SelectionInput& input) const = 0;
};

void register_plugs(PlugRegistry<Selector>& plugs);
/// The selectors of this build: the files in engine/select/plugs.
inline const PlugRegistry<Selector>& selectors() {
  return built_plugs<Selector>({.field = "selector"});
}

/// Returns the first block and the last two of `num_blocks`, each once.
std::vector<std::int32_t> anchor_blocks(std::int32_t num_blocks);

/// Returns the document of each context, counted from 0: chunks that continue one another are one.
std::vector<std::int32_t> documents_of(std::span<const SelectableContext> contexts);

}  // namespace quire
