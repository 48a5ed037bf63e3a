/// Choosing candidates for each KV head where a device computes: scores, votes, what is chosen and
/// lists of rows stay there, and nobody waits.
#pragma once

#include <cstdint>

#include "engine/cache/compute_memory.h"
#include "engine/model/compute.h"
#include "engine/retrieve/choosing_memory.h"
#include "kernels/candidates.h"

namespace quire {

/// Lists of rows in a Compute's memory.
struct DeviceLists {
  const RowList* lists = nullptr;  ///< [num_kv_heads]
  std::int64_t longest = 0;        ///< rows that none of them exceeds
};

/// Buffers of one sequence, for one layer after the other: what is enqueued keeps their order. Of a
/// Compute with hooks(). Threads: the one that computes. Errors of all calls: those of HookCompute.
class DeviceChoice {
 public:
  /// Of no use until it is given a memory.
  DeviceChoice() = default;
  /// `memory`: of the Compute that all calls get.
  explicit DeviceChoice(std::shared_ptr<ChoosingMemory> memory) : memory_(std::move(memory)) {}
  /// What scores [num_heads, candidates], their votes and lists no longer than that take at most;
  /// candidates are one for so many rows (0: none), and some more.
  static ChoosingNeed need(const RetrieveShape& shape, std::int64_t rows_per_candidate,
                           std::int64_t more_candidates, std::int64_t most_listed);

  /// Where the scores [num_heads, n] of the next choose() go.
  Result<float*> scores(std::int64_t num_heads, std::int64_t n);
  /// By those, `chosen` [num_kv_heads, min(k, n)]: the k candidates with the most votes, ascending.
  Status choose(Compute& compute, std::int32_t num_kv_heads, std::int32_t group, std::int64_t n,
                CandidateVote vote, std::int64_t k, std::int32_t* chosen);
  /// `args` without rows and lists, where units are the host's and what is chosen lies there. The
  /// lists are good until the next call.
  Result<DeviceLists> lists(Compute& compute, CandidateRowsArgs args);

 private:
  template <class T>
  struct Room {
    ComputeBuffer<T> buffer;
    std::int64_t size = 0;
    Status reserve(const std::shared_ptr<ChoosingMemory>& memory, std::int64_t n) {
      if (n <= size) return {};
      size = 0;
      QUIRE_RETURN_IF_ERROR(buffer.reserve(memory, with_room(n)));
      size = with_room(n);
      return {};
    }
  };
  std::shared_ptr<ChoosingMemory> memory_;
  Room<float> scores_, votes_;
  Room<std::int32_t> rows_;
  Room<RowList> lists_;
};

}  // namespace quire
