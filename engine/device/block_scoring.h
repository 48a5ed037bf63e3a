/// BlockScoring computes SamKV's scores of the blocks of many documents and layers in one launch.
/// Internal to engine/device.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>

#include "engine/compute/choice_ops.h"
#include "engine/device/device_memory.h"

namespace quire {

/// BlockScoring uploads queries and downloads scores; the means are on the device. Threads: the
/// computing thread.
class BlockScoring {
 public:
  explicit BlockScoring(const std::shared_ptr<DeviceMemory>& memory)
      : memory_(memory),
        stage_(memory),
        scores_(memory, cuda::MemoryKind::kDevice),
        pinned_(memory, cuda::MemoryKind::kPinned) {}
  /// Runs ChoiceOps::score_blocks(). A query that several documents share by address is uploaded
  /// once.
  Status run(const cuda::DeviceRopeTable& table, std::int32_t num_heads, std::int32_t num_kv_heads,
             std::span<const ScoredBlocks> documents);

 private:
  Result<std::unordered_map<const float*, const float*>> send_queries(
      std::span<const ScoredBlocks> documents, std::size_t dim);

  const std::shared_ptr<DeviceMemory> memory_;
  ArgumentStage stage_;
  DeviceBuffer scores_, pinned_;  ///< of all documents in order: `score`, then `comparable`
};

}  // namespace quire
