/// ChoiceBuffers chooses candidates for each KV head: scores, votes, choices and row lists stay in
/// the Compute's memory, and the host does not synchronize.
#pragma once

#include <cstdint>

#include "engine/cache/compute_memory.h"
#include "engine/compute/compute.h"
#include "engine/retrieve/choosing_memory.h"
#include "kernels/choice/candidates.h"

namespace quire {

/// ChosenLists are lists of rows in a Compute's memory.
struct ChosenLists {
  const RowList* lists = nullptr;  ///< [num_kv_heads]
  std::int64_t longest = 0;        ///< upper bound of the rows of a list
};

/// ChoiceBuffers holds the buffers of one sequence. Its layers share them, because enqueued work
/// keeps its order. Threads: one at a time. Errors of all calls: those of Compute.
class ChoiceBuffers {
 public:
  ChoiceBuffers() = default;
  /// Makes buffers in the memory of the Compute of all calls; null: the host computes.
  explicit ChoiceBuffers(std::shared_ptr<ChoosingMemory> memory) : memory_(std::move(memory)) {}
  /// Returns the upper bound of the memory for scores [num_heads, candidates], their votes and
  /// lists of at most most_listed rows. There is one candidate per rows_per_candidate rows (0:
  /// none), and more_candidates more.
  static ChoosingNeed need(const RetrieveShape& shape, std::int64_t rows_per_candidate,
                           std::int64_t more_candidates, std::int64_t most_listed);

  /// Returns the buffer for the scores [num_heads, n] of the next choose().
  Result<float*> scores(std::int64_t num_heads, std::int64_t n);
  /// Returns the buffer for votes [num_kv_heads, n], for callers that choose otherwise.
  Result<float*> votes(std::int64_t num_kv_heads, std::int64_t n);
  /// Writes `chosen` [num_kv_heads, min(k, n)]: the k candidates with the most votes by those
  /// scores, ascending.
  Status choose(Compute& compute, std::int32_t num_kv_heads, std::int32_t group, std::int64_t n,
                CandidateVote vote, std::int64_t k, std::int32_t* chosen);
  /// Builds the row lists of the choice; they are valid until the next call. `args` comes without
  /// rows and lists; its units are ordinary memory and its choice is the Compute's.
  Result<ChosenLists> lists(Compute& compute, CandidateRowsArgs args);

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
