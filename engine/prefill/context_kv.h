/// Prefilling one context alone, as at ingest, and keeping its raw KV.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cachestore/value_buffer.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/prefill/attention_statistics.h"
#include "engine/prefill/pass_resources.h"
#include "engine/record/kv_layout.h"
#include "engine/record/sketch.h"
#include "engine/retrieve/head/head_track.h"

namespace quire {

/// Raw KV of one context in the form of its stored values.
struct ContextKv {
  KvLayout layout;
  /// [block * num_groups + group]. Filled in place, then handed to the store as they are.
  std::vector<std::shared_ptr<ValueBuffer>> values;
  /// [num_layers, num_heads * head_dim], mean raw q over the last two blocks
  std::vector<float> local_query;
  std::vector<BlockStats> stats;  ///< [num_layers, num_blocks]
  /// [num_layers, num_blocks, num_kv_heads * head_dim] of keys, where a device made them; else
  /// empty
  std::vector<float> means;
  /// Keys of the retrieval head (head_record.h); empty: there is none that uses features
  std::vector<std::byte> head_record;

  /// Queries of its last tokens (tail_record.h); empty: it is too short for one
  std::vector<std::byte> tail_record;

  std::span<const std::byte> value(std::int32_t block, std::int32_t group) const {
    return values[static_cast<std::size_t>(block * layout.num_groups() + group)]->payload();
  }
};

/// How much one call may compute. What is left is taken up by the next; no bound changes a bit of
/// the result.
struct PieceLimit {
  /// Of a chunk that begins; at least one block is taken
  std::int32_t max_tokens = std::numeric_limits<std::int32_t>::max();
  /// Ends behind the layer after which another would pass it; one always runs
  double max_ms = std::numeric_limits<double>::infinity();
};

/// Whether it is seen who attends to whom (attention_statistics.h): a second product of queries and
/// keys. Without them there is no sketch either.
enum class PrefillStatistics : std::uint8_t { kKeep, kSkip };

/// Runs [ingest prefix] + tokens chunk by chunk through a working cache of its own. The result is,
/// bit for bit, what a store gives back. Threads: the engine thread.
class ContextPrefill {
 public:
  /// `core` and `token_ids` must outlive it. At least one token.
  ContextPrefill(PassResources& core, std::span<const std::int32_t> token_ids,
                 PrefillStatistics statistics = PrefillStatistics::kKeep);
  ~ContextPrefill();

  bool done() const { return next_ == static_cast<std::int64_t>(token_ids_.size()); }
  std::int64_t tokens_done() const { return next_; }       ///< whole chunks only
  double compute_ms() const { return compute_ms_; }        ///< statistics included
  double statistics_ms() const { return statistics_ms_; }  ///< of which attention statistics
  /// One chunk, or some layers of it. Errors: kResourceExhausted (no room for its working cache),
  /// kInvalidArgument.
  Status step(const PieceLimit& limit = {});
  WorkingCache& cache() { return cache_; }
  /// After done(); once.
  std::shared_ptr<const ContextKv> take();

 private:
  /// The chunk that is being computed.
  struct Chunk;
  void begin_chunk(std::int32_t max_tokens);
  Status end_chunk();
  PassResources& core_;
  std::span<const std::int32_t> token_ids_;
  std::shared_ptr<ContextKv> kv_;
  WorkingCache cache_;
  const PrefillStatistics keep_statistics_;
  AttentionStatistics statistics_;
  std::unique_ptr<HeadTrack> head_track_;  ///< null: no head that uses features
  ForwardWorkspace workspace_;  ///< its own: other passes run between the layers of a chunk
  std::unique_ptr<Chunk> chunk_;
  std::int64_t next_ = 0;
  double compute_ms_ = 0, statistics_ms_ = 0;
};

/// The context's sketch record, as ingest stores it. Any thread.
Result<std::vector<std::byte>> context_sketch(const ContextKv& kv, std::int32_t num_heads,
                                              const RopeTable& rope);

}  // namespace quire
