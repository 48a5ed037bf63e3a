/// This file keeps block means of documents in device memory, so that a question is scored on the
/// device.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cachestore/format/key.h"
#include "engine/compute/compute.h"
#include "engine/select/selector.h"
#include "kernels/rows/rope.h"

namespace quire {

/// Caches block means, f32, on the device. They are uploaded with the first question that scores a
/// document and evicted least recently used first. Threads: the engine thread.
class ResidentMeans {
 public:
  /// `compute` must have a memory(). `compute` and `rope`, a table registered with it, must outlive
  /// this object.
  ResidentMeans(Compute& compute, const RopeTable& rope, std::int64_t max_bytes)
      : compute_(compute), rope_(rope), max_bytes_(max_bytes) {}

  struct Stats {
    std::int64_t uploads = 0, hits = 0, bytes = 0;  ///< bytes: held now
  };
  const Stats& stats() const { return stats_; }

 private:
  friend class ResidentScorer;
  struct Entry {
    ContextKey key;
    ComputeValues means;  ///< [num_layers, num_blocks, num_kv_heads * head_dim]
  };
  /// Returns the means of a sketch, uploading them if needed. Errors: kResourceExhausted (they
  /// exceed max_bytes, or the device is full), kDeviceLost.
  Result<ComputeValues> get(const std::optional<ContextKey>& key, const SketchView& sketch);
  void make_room(std::int64_t bytes);

  Compute& compute_;
  const RopeTable& rope_;
  const std::int64_t max_bytes_;
  std::list<Entry> entries_;  ///< most recently used first
  std::map<ContextKey, std::list<Entry>::iterator> by_key_;
  Stats stats_;
};

/// Scores the blocks of one selection on the device. Threads: the engine thread.
class ResidentScorer final : public BlockScorer {
 public:
  /// `keys` is [context] of the selection's input, the names of what the sketches were made of.
  /// Means of a context without a key are uploaded for this selection only.
  ResidentScorer(ResidentMeans& means, std::span<const std::optional<ContextKey>> keys)
      : means_(means), keys_(keys) {}
  Result<bool> score(const Shape& shape, std::span<const Item> items) override;

 private:
  ResidentMeans& means_;
  const std::span<const std::optional<ContextKey>> keys_;
};

}  // namespace quire
