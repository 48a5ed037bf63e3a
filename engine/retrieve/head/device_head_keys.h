/// DeviceHeadKeys holds a retrieval head's keys for the tokens of one sequence on a computing
/// device. It scores them there, and chooses rows by the scores: HeadKeys, head_scores() and
/// select_for_heads() in one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/head/head_selection.h"
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
  /// Returns the upper bound of the memory for keys, a query, its scores and votes.
  static ChoosingNeed need(const RetrievalHead& head);

  /// Appends keys from `raw`, [positions.size(), key_dim()] f32 before rotation. Errors:
  /// kResourceExhausted, kInvalidArgument (a position past the head's table); nothing is added
  /// then.
  Status append(const float* raw, std::span<const std::int32_t> positions);
  /// Asked is one sequence's part of ask(): what a rotated query [query_dim()] at the newest
  /// position asks for.
  struct Asked {
    DeviceHeadKeys* keys;
    const float* query;
    std::int32_t target_kv_heads;
    /// Where the device chooses: fewer tokens than there are rows. Null: the scores are wanted.
    const SelectionBudget* budget = nullptr;
    std::vector<float>* scores = nullptr;  ///< out: head_scores(), [target_kv_heads, num_rows()]
    std::vector<std::vector<std::int32_t>>* rows = nullptr;  ///< out: those of select_for_heads()
  };
  /// Asks for all at once: one download, and one wait for it. All keys are of one Compute. Errors:
  /// those of the Compute, after which nothing was answered and all may ask again.
  static Status ask(std::span<const Asked> all);

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t bytes() const {
    return count_of(blocks_) * kBlockRows * row_values() *
           static_cast<std::int64_t>(sizeof(std::uint16_t));
  }

 private:
  static constexpr std::int64_t kBlockRows = 1024;  // rows of an allocation
  /// The bytes of answers that are brought at once; scores of many long sequences are more.
  static constexpr std::int64_t kMostAtOnce = std::int64_t{16} << 20;
  std::int64_t row_values() const { return head_.config().key_dim(); }
  std::int32_t voters(std::int32_t target_kv_heads) const;
  std::int64_t answer_bytes(const Asked& asked) const;
  static Status ask_at_once(std::span<const Asked> all, std::int64_t bytes);
  Status make_room(const Asked& asked);
  Status enqueue(const Asked& asked, std::byte* to);
  void answer(const Asked& asked, const std::byte* from) const;

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
