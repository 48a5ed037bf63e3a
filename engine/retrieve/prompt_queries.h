/// PromptQueries records queries of prompt rows while the rows run, for retrievers that learn from
/// more than the current token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/model/forward.h"
#include "kernels/rows/rope.h"

namespace quire {

/// WantedQueries says which rows' queries a retriever wants.
struct WantedQueries {
  enum class Rows : std::uint8_t {
    /// The rows with the largest positions. A draft's look-ahead follows the prompt and counts
    /// first.
    kLast,
    kFirst,   ///< first rows of the prompt
    kSpread,  ///< evenly over the prompt
    kRandom   ///< at positions of the prompt that depend only on its length and `count`
  };
  std::int64_t count = 0;  ///< at most; 0: none
  Rows rows = Rows::kLast;
  /// If fewer rows ran, the stored queries of documents' last tokens fill up; for kLast.
  bool stored = false;
};

/// PromptQueries is a hook of the passes that assemble a prompt: its computed tokens, recomputed
/// tokens of documents, the question and a look-ahead. Tokens that were only placed have no query
/// except those few that ingest stored. Layers may therefore hold fewer rows than requested, and
/// different ones. A row that runs twice keeps the later query. Memory: count * num_heads *
/// head_dim * 2 bytes a layer. Threads: the engine thread.
class PromptQueries final : public ForwardHook {
 public:
  struct Shape {
    std::int32_t num_layers = 0, num_heads = 0, head_dim = 0;
  };
  /// Makes a hook for one prompt. `rope` must outlive it.
  PromptQueries(const RopeTable& rope, Shape shape, WantedQueries wanted,
                std::int64_t prompt_tokens);

  /// Returns false: queries are fetched by the end of the pass.
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  bool wants_lse(std::int32_t) const override { return true; }
  Status after_attention(LayerPass& pass) override;

  /// Returns whether the layer has fewer rows than requested.
  bool has_room(std::int32_t layer) const { return num_rows(layer) < wanted_.count; }
  /// Adds the query of a token that was only placed: [num_heads * head_dim] f32 before RoPE. It has
  /// no effect if the layer has no room, or has a computed row at that position.
  Status add_stored(std::int32_t layer, std::int32_t position, std::span<const float> raw);

  /// Returns whether the kept rows depend on prompt rows before the last wanted().count computed
  /// ones.
  bool needs_whole_prompt() const { return wanted_.rows != WantedQueries::Rows::kLast; }
  const WantedQueries& wanted() const { return wanted_; }

  std::int64_t num_rows(std::int32_t layer) const { return count_of(layers_[at(layer)].rows); }
  /// Returns the position of the i-th row by position, i below num_rows(layer).
  std::int32_t position(std::int32_t layer, std::int64_t i) const { return row(layer, i).position; }
  /// Returns the row's query, [num_heads, head_dim] bf16, post-RoPE; valid until the next row is
  /// recorded.
  std::span<const std::uint16_t> query(std::int32_t layer, std::int64_t i) const;
  /// Returns the log-sum-exps [num_heads] of the row's attention to everything it saw. NaN in all
  /// heads: it did not attend, because no later layer needed its output.
  std::span<const float> lse(std::int32_t layer, std::int64_t i) const;
  /// Frees the layer's rows.
  void release(std::int32_t layer) { layers_[at(layer)] = {}; }

 private:
  struct Row {
    std::int32_t position = 0, slot = 0;
  };
  struct Layer {
    std::vector<Row> rows;               ///< ascending positions
    std::vector<std::uint16_t> queries;  ///< [slot][num_heads, head_dim]
    std::vector<float> lse;              ///< [slot][num_heads]
  };
  Status take_row(std::int32_t layer, std::int32_t position, const float* raw, const float* lse);
  Status fetch_rows(const LayerPass& pass, std::span<const std::int32_t> rows);
  Status keep(Layer& layer, std::int32_t slot, std::int32_t position, const float* raw,
              const float* lse);
  const Row& row(std::int32_t layer, std::int64_t i) const {
    return layers_[at(layer)].rows[at(i)];
  }
  bool wanted(std::int32_t position) const;
  std::int32_t slot_for(Layer& layer, std::int32_t position) const;

  const RopeTable& rope_;
  const Shape shape_;
  const WantedQueries wanted_;
  std::vector<std::int32_t> positions_;  ///< wanted, ascending; unused with kLast
  std::vector<Layer> layers_;
  std::vector<float> rotated_;  ///< [num_heads, head_dim]
  Status failed_;               ///< status of a fetched row
};

}  // namespace quire
