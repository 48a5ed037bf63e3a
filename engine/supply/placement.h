/// This file places the kept blocks of contexts into a working cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/compute/kv_ops.h"
#include "engine/query/query_run.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/supply/kv_supply.h"

namespace quire {

/// Places contexts. begin() appends the rows of all contexts in prompt order in every layer; their
/// contents are filled in as values arrive. Keys are rotated to the plan's positions. Threads: the
/// engine thread.
class Placement final : public LayerGate {
 public:
  /// Selects what happens to the values of a context once it is placed in all layers.
  enum class Values : std::uint8_t { kKeep, kRelease };
  Placement(QueryRun& run, KvSupply& supply, Values values)
      : run_(run), supply_(supply), values_(values) {}

  /// Appends rows to every layer for what the plan's selection keeps of `contexts` (prompt order).
  /// The previous call must be done. Errors: kResourceExhausted.
  Status begin(std::vector<std::int32_t> contexts);
  bool done() const;
  /// Returns whether a pass may run through this layer, once it has called bring().
  bool placed(std::int32_t layer) const override;
  bool all_placed() const override;
  /// Places what has arrived of this layer, on a device.
  Status bring(std::int32_t layer) override;
  /// Packing is the time in which a pass may pack ahead: stored values must not change in it.
  class Packing {
   public:
    explicit Packing(Placement& placement) : placement_(placement) {}
    ~Packing() { placement_.run_.core.model->compute().kv().end_packing(); }
    Packing(const Packing&) = delete;
    Packing& operator=(const Packing&) = delete;
    /// Begins to pack what the next bring() of this layer will place, while the caller enqueues the
    /// layer before. The layer need not be there, and may be the one after the last.
    void ahead(std::int32_t layer) { placement_.pack_ahead(layer); }

   private:
    Placement& placement_;
  };
  /// Returns whether a device computes, so that passes bring the layers that they run through.
  bool by_passes() const;
  /// Returns whether values have arrived that are not placed yet.
  bool ready() const;
  /// Places values that have arrived: of one context, or of all contexts on a device.
  Status step();

 private:
  struct Part {
    std::int32_t context = 0, generation = 0;
    std::vector<std::int64_t> first_row;  ///< [layer]
    std::vector<std::uint8_t> placed;     ///< [layer]
    bool done() const;
  };
  void add_positions(std::int32_t context, std::int32_t layer,
                     std::vector<std::int32_t>& out) const;
  /// Layers of one context whose values are there.
  struct Ready {
    Part* part;
    std::vector<std::int32_t> layers;
  };
  /// Blocks of one layer that a device places in one call.
  struct Call {
    struct Kept {
      const Part* part;
      std::int32_t block;
      std::int64_t first, rows;  ///< of `rows` below
    };
    std::int32_t layer = 0;
    std::vector<Kept> kept;
    std::vector<std::int32_t> rows;  ///< of the cache
  };
  void pack_ahead(std::int32_t layer);
  std::vector<Call> calls_of(std::span<const Ready> all) const;
  Result<std::vector<RawKvView>> stored(const Call& call) const;
  Status place(const Call& call);
  bool holds(const Part& part, std::int32_t layer) const;
  bool arrived(const Part& part, std::int32_t layer) const;
  std::vector<std::int32_t> layers_ready(const Part& part) const;
  /// Counts layers of a part as placed.
  void take(Part& part, std::span<const std::int32_t> layers);
  void release_placed();
  Status place_by_threads(const Ready& ready);
  Status place_in_order(std::span<const Ready> all);
  Status place_layer(const Part& part, std::int32_t layer);

  QueryRun& run_;
  KvSupply& supply_;
  const Values values_;
  std::vector<Part> parts_;
  Clock::time_point brought_;  ///< time of the first bring(), until all is placed
};

}  // namespace quire
