/// Queries of prompt rows, seen while the rows run: what retrievers learn from that look at more
/// than the present token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/forward.h"
#include "kernels/rope.h"

namespace quire {

/// The rows whose queries a retriever wants.
struct QueryWish {
  enum class Rows : std::uint8_t {
    /// With the largest positions; a draft's look-ahead stands behind the prompt and comes first
    kLast,
    kFirst,   ///< of the prompt
    kSpread,  ///< evenly over the prompt
    kRandom   ///< at positions of the prompt that depend on nothing but its length and `count`
  };
  std::int64_t count = 0;  ///< at most; 0: none
  Rows rows = Rows::kLast;
  /// Where fewer ran, those that ingest stored of documents' last tokens fill up; of kLast
  bool stored = false;
};

/// Hung into the passes that put a prompt together: its computed tokens, recomputed tokens of
/// documents, the question and a look-ahead. Tokens that only were placed have no query but what
/// ingest stored of a few, so layers may hold fewer rows than were wished for, and different ones.
/// A row that runs twice counts with the later query. Memory: count * num_heads * head_dim * 2
/// bytes a layer. Threads: the engine thread.
class PromptQueries final : public ForwardHook {
 public:
  struct Shape {
    std::int32_t num_layers = 0, num_heads = 0, head_dim = 0;
  };
  /// `rope` must outlive it.
  PromptQueries(const RopeTable& rope, Shape shape, QueryWish wish, std::int64_t prompt_tokens);

  /// On a device queries are fetched when a pass is over.
  bool looks_at(std::int32_t, HookPoint, Compute& compute) const override {
    return compute.hooks() == nullptr;
  }
  bool wants_lse(std::int32_t) const override { return true; }
  Status after_attention(LayerPass& pass) override;

  /// The layer has fewer rows than were wished for.
  bool has_room(std::int32_t layer) const { return num_rows(layer) < wish_.count; }
  /// A query of a token that was only placed: [num_heads * head_dim] f32 before RoPE. Without
  /// effect where the layer has no room or a row at that position that ran.
  Status add_stored(std::int32_t layer, std::int32_t position, std::span<const float> raw);

  /// Whether the rows kept depend on those at the front of the prompt that come before its last
  /// wish().count computed ones.
  bool needs_whole_prompt() const { return wish_.rows != QueryWish::Rows::kLast; }
  const QueryWish& wish() const { return wish_; }

  std::int64_t num_rows(std::int32_t layer) const {
    return static_cast<std::int64_t>(layers_[static_cast<std::size_t>(layer)].rows.size());
  }
  /// Of the i-th row by position, below num_rows(layer).
  std::int32_t position(std::int32_t layer, std::int64_t i) const { return row(layer, i).position; }
  /// [num_heads, head_dim] bf16, post-RoPE; valid until the next row is seen.
  std::span<const std::uint16_t> query(std::int32_t layer, std::int64_t i) const;
  /// [num_heads] log-sum-exp of the row's attention to everything it saw; NaN in all heads: it did
  /// not attend, because nothing above needed its output.
  std::span<const float> lse(std::int32_t layer, std::int64_t i) const;
  /// The layer's rows are not needed any more.
  void release(std::int32_t layer) { layers_[static_cast<std::size_t>(layer)] = {}; }

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
    return layers_[static_cast<std::size_t>(layer)].rows[static_cast<std::size_t>(i)];
  }
  bool wanted(std::int32_t position) const;
  std::int32_t slot_for(Layer& layer, std::int32_t position) const;

  const RopeTable& rope_;
  const Shape shape_;
  const QueryWish wish_;
  std::vector<std::int32_t> positions_;  ///< wanted, ascending; not of kLast
  std::vector<Layer> layers_;
  std::vector<float> rotated_;  ///< [num_heads, head_dim]
  Status failed_;               ///< of a row that was fetched
};

}  // namespace quire
