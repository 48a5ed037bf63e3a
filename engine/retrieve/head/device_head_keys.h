/// DeviceHeadKeys holds a retrieval head's keys for the tokens of one sequence on a computing
/// device and scores them there: HeadKeys and head_scores() in one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/head/retrieval_head.h"

namespace quire {

/// DeviceHeadKeys stores rows in the order in which their tokens were added; keys are rotated and
/// bf16. Threads: the computing thread, between steps, when nothing enqueued uses the keys.
class DeviceHeadKeys {
 public:
  /// Makes an empty object. Compute and head must outlive it; `memory`
  /// belongs to it.
  DeviceHeadKeys(Compute& compute, std::shared_ptr<ChoosingMemory> memory,
                 const RetrievalHead& head)
      : compute_(compute), memory_(memory), head_(head), choice_(std::move(memory)) {}
  /// Returns the upper bound of the memory for keys, a query and its scores.
  static ChoosingNeed need(const RetrievalHead& head);

  /// Appends keys from `raw`, [positions.size(), key_dim()] f32 before rotation. Errors:
  /// kResourceExhausted, kInvalidArgument (a position past the head's table); nothing is added
  /// then.
  Status append(const float* raw, std::span<const std::int32_t> positions);
  /// Computes head_scores(), scores [target_kv_heads, num_rows()], of a rotated query [query_dim()]
  /// at the newest position. It synchronizes once.
  Status score(const float* query, std::int32_t target_kv_heads, std::vector<float>& scores);

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t bytes() const {
    return count_of(blocks_) * kBlockRows * row_values() *
           static_cast<std::int64_t>(sizeof(std::uint16_t));
  }

 private:
  static constexpr std::int64_t kBlockRows = 1024;  // rows of an allocation
  std::int64_t row_values() const { return head_.config().key_dim(); }

  Compute& compute_;
  const std::shared_ptr<ChoosingMemory> memory_;
  const RetrievalHead& head_;
  std::vector<ComputeBuffer<std::uint16_t>> blocks_;
  std::vector<const void*> pages_;
  std::int64_t num_rows_ = 0;
  ComputeBuffer<float> query_;
  ChoiceBuffers choice_;
  std::vector<float> rotated_;  ///< scratch
};

}  // namespace quire
