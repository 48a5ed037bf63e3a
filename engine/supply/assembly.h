/// This file assembles the prompt in the working cache from computed and placed parts, in prompt
/// order.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"
#include "engine/supply/placement.h"
#include "engine/supply/sparse_pass.h"

namespace quire {

/// Assembles the prompt. Threads: the engine thread.
class Assembly {
 public:
  /// Prepares the assembly; the plan must be complete. Rows that the cache holds are those of the
  /// whole system prefix.
  Assembly(QueryRun& run, KvSupply& supply);
  ~Assembly();

  /// Skips this many prompt rows that the cache already holds besides a finished prefix. Call
  /// before the first step(), with fewer rows than the prompt has.
  void skip(std::int64_t tokens);
  /// Returns whether step() has work; else it waits for values.
  bool ready() const;
  /// Returns whether only the chunk with the question's last row, and the look-ahead after it, is
  /// left.
  bool last_chunk() const;
  /// Returns whether everything before the question is in the cache.
  bool before_question() const { return items_[next_].question && done_tokens_ == 0; }
  bool done() const { return next_ == items_.size(); }
  /// Returns whether arrived values may be placed, even while a pass is between layers. Place them
  /// before any other step.
  bool can_place() const { return placement_.ready() && !(placement_.by_passes() && !placing_); }
  Status place();
  /// Places all layers that have arrived and are left to passes.
  Status bring_all();
  /// Returns whether no row of a placed context is missing in the cache.
  bool all_in_cache() const { return placement_.done(); }
  /// Returns the gate over placed layers. The question, and a recompute pass before it, run through
  /// a layer once it is placed.
  LayerGate& placed() { return placement_; }
  const LayerGate& placed() const { return placement_; }
  /// Computes one chunk, as far as layers are placed, or places one context.
  Status step();

  /// Returns the logits of the question's last row, [vocab_size]; valid once, when done.
  std::vector<float> take_logits() { return std::move(logits_); }
  std::int32_t next_position() const { return next_position_; }
  Clock::time_point compute_started() const { return compute_started_; }

 private:
  /// A sequence of tokens to compute, or of neighbouring contexts to place.
  struct Item {
    std::vector<std::int32_t> contexts;        ///< contexts to place; empty: tokens are computed
    std::vector<std::int32_t> ids, positions;  ///< tokens to compute
    bool question = false;                     ///< the logits of its last row start the answer
    bool replaces_last_row = false;
  };
  /// A forward pass over part of an item.
  struct Chunk;
  Item& computed_item();
  void add_contexts();
  void add_question();
  Status begin_placing(const Item& item);
  void begin_chunk(Item& item);
  Status run_chunk(Item& item);
  Status end_chunk();
  bool overlaps(const Item& item) const;
  Status run_sparse(Item& item);
  Status track_placed(const Item& item);
  Status take_last_row_out(const Item& item);
  std::span<const std::int32_t> look_ahead() const;

  QueryRun& run_;
  KvSupply& supply_;
  Placement placement_;
  std::vector<Item> items_;
  std::size_t next_ = 0;
  std::size_t done_tokens_ = 0;  ///< tokens done of the current item
  bool placing_ = false;
  std::unique_ptr<SparsePass> sparse_;  ///< set while the whole prompt runs in one sparse pass
  std::unique_ptr<Chunk> chunk_;        ///< set while a chunk runs
  std::vector<float> logits_;
  std::int32_t next_position_ = 0;
  Clock::time_point compute_started_;
};

}  // namespace quire
