/// Block means of documents where the model computes, so that a question scores them there.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cachestore/key.h"
#include "engine/model/compute.h"
#include "engine/select/selector.h"
#include "kernels/rope.h"

namespace quire {

/// Means go up with the first question that scores a document, in f32, and stay until others need
/// the room: least recently used first out. Threads: the engine thread.
class ResidentMeans {
 public:
  /// `compute` has a memory(); it and `rope`, a table it knows, outlive this.
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
  /// Errors: kResourceExhausted (more than the room there is, or the device is full), kDeviceLost.
  Result<ComputeValues> get(const std::optional<ContextKey>& key, const SketchView& sketch);
  void make_room(std::int64_t bytes);

  Compute& compute_;
  const RopeTable& rope_;
  const std::int64_t max_bytes_;
  std::list<Entry> entries_;  ///< most recently used first
  std::map<ContextKey, std::list<Entry>::iterator> by_key_;
  Stats stats_;
};

/// For one selection. Threads: the engine thread.
class ResidentScorer final : public BlockScorer {
 public:
  /// keys: [context] of the selection's input; none: its means go up for this selection alone.
  ResidentScorer(ResidentMeans& means, std::span<const std::optional<ContextKey>> keys)
      : means_(means), keys_(keys) {}
  Result<bool> score(const Shape& shape, std::span<const Item> items) override;

 private:
  ResidentMeans& means_;
  const std::span<const std::optional<ContextKey>> keys_;
};

}  // namespace quire
