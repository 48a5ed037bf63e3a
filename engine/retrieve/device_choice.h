/// DeviceChoice chooses candidates for each KV head on a computing device: scores, votes, choices
/// and row lists stay in device memory, and the host does not synchronize.
#pragma once

#include <cstdint>

#include "engine/cache/compute_memory.h"
#include "engine/model/compute.h"
#include "engine/retrieve/choosing_memory.h"
#include "kernels/candidates.h"

namespace quire {

/// DeviceLists are lists of rows in a Compute's memory.
struct DeviceLists {
  const RowList* lists = nullptr;  ///< [num_kv_heads]
  std::int64_t longest = 0;        ///< upper bound of the rows of a list
};

/// DeviceChoice holds the buffers of one sequence on a Compute with hooks(). Its layers share them,
/// because enqueued work keeps its order. Threads: the computing thread. Errors of all calls: those
/// of HookCompute.
class DeviceChoice {
 public:
  /// Makes an object that cannot be used until it is assigned one with a memory.
  DeviceChoice() = default;
  /// Makes a choice whose `memory` belongs to the Compute of all calls.
  explicit DeviceChoice(std::shared_ptr<ChoosingMemory> memory) : memory_(std::move(memory)) {}
  /// Returns the upper bound of the memory for scores [num_heads, candidates], their votes and
  /// lists of at most most_listed rows. There is one candidate per rows_per_candidate rows (0:
  /// none), and more_candidates more.
  static ChoosingNeed need(const RetrieveShape& shape, std::int64_t rows_per_candidate,
                           std::int64_t more_candidates, std::int64_t most_listed);

  /// Returns the buffer for the scores [num_heads, n] of the next choose().
  Result<float*> scores(std::int64_t num_heads, std::int64_t n);
  /// Writes `chosen` [num_kv_heads, min(k, n)]: the k candidates with the most votes by those
  /// scores, ascending.
  Status choose(Compute& compute, std::int32_t num_kv_heads, std::int32_t group, std::int64_t n,
                CandidateVote vote, std::int64_t k, std::int32_t* chosen);
  /// Builds the row lists of the choice on the device; they are valid until the next call. `args`
  /// comes without rows and lists; its units are host memory and its choice is device memory.
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
