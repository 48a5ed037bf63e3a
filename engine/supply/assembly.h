/// The prompt put together in the working cache: what is computed and what is placed, in prompt
/// order.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"
#include "engine/supply/placement.h"
#include "engine/supply/sparse_pass.h"

namespace quire {

/// Threads: the engine thread.
class Assembly {
 public:
  /// The plan is complete. `prefix_done`: the cache holds the system prefix already.
  Assembly(QueryRun& run, KvSupply& supply, bool prefix_done);
  ~Assembly();

  /// The cache begins with this many rows of the prompt already, besides a finished prefix. Before
  /// the first step(); fewer than the prompt has.
  void skip(std::int64_t tokens);
  /// Whether step() has work; else it waits for values.
  bool ready() const;
  /// What is left is the chunk with the question's last row, and with the look-ahead behind it.
  bool last_chunk() const;
  /// Everything before the question is in the cache.
  bool before_question() const { return items_[next_].question && done_tokens_ == 0; }
  bool done() const { return next_ == items_.size(); }
  /// Values arrived that may go into the cache, also while a pass is between layers: before any
  /// other step.
  bool can_place() const { return placement_.ready(); }
  Status place();
  /// All that was placed is still what the supply has. The question, and a recompute pass before
  /// it, run through a layer as soon as that is placed.
  const LayerGate& placed() const { return placement_; }
  /// One chunk of computing, as far as layers are placed, or the placing of one context.
  Status step();

  /// Of the question's last row, [vocab_size]; once done.
  const std::vector<float>& logits() const { return logits_; }
  std::int32_t next_position() const { return next_position_; }
  Clock::time_point compute_started() const { return compute_started_; }

 private:
  /// A run of tokens to compute, or neighbouring contexts to place.
  struct Item {
    std::vector<std::int32_t> contexts;        ///< placed; none: computed
    std::vector<std::int32_t> ids, positions;  ///< computed
    bool question = false;                     ///< its last row's logits start the answer
    bool replaces_last_row = false;
  };
  /// A forward pass over a piece of an item.
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
  std::size_t done_tokens_ = 0;  ///< of the present item
  bool placing_ = false;
  std::unique_ptr<SparsePass> sparse_;  ///< while the prompt runs whole
  std::unique_ptr<Chunk> chunk_;        ///< while it runs
  std::vector<float> logits_;
  std::int32_t next_position_ = 0;
  Clock::time_point compute_started_;
};

}  // namespace quire
