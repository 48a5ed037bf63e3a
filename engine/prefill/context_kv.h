/// This file prefills one context alone, as at ingest, and keeps its raw KV.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "base/status.h"
#include "cachestore/format/value_buffer.h"
#include "engine/cache/compute_memory.h"
#include "engine/cache/working_cache.h"
#include "engine/model/forward.h"
#include "engine/prefill/attention_statistics.h"
#include "engine/prefill/context_observer.h"
#include "engine/prefill/pass_resources.h"
#include "engine/record/kv_layout.h"
#include "engine/record/sketch.h"

namespace quire {

/// Raw KV of one context, as stored values.
struct ContextKv {
  KvLayout layout;
  /// Values, [block * num_groups + group]. They are filled in place and then handed to the store
  /// without a copy.
  std::vector<std::shared_ptr<ValueBuffer>> values;
  /// Mean raw q over the last two blocks, [num_layers, num_heads * head_dim].
  std::vector<float> local_query;
  /// Its sums in the model's memory while the context runs, in the order of the rows.
  ComputeBuffer<float> local_sums;
  std::vector<BlockStats> stats;  ///< [num_layers, num_blocks]
  /// Block means of keys, [num_layers, num_blocks, num_kv_heads * head_dim]; empty without records.
  std::vector<float> means;
  /// What observers made, by the index of their kind (record_kind.h).
  std::map<std::uint32_t, std::vector<std::byte>> records;

  std::span<const std::byte> value(std::int32_t block, std::int32_t group) const {
    return values[at(block * layout.num_groups() + group)]->payload();
  }
};

/// An observer and the index of the record that it makes.
struct ObservedRecord {
  std::uint32_t index = 0;
  std::unique_ptr<ContextObserver> observer;
};

/// Limits the work of one call. The next call continues, and no limit changes any bit of the
/// result.
struct PieceLimit {
  /// Most tokens of a new chunk; at least one block is taken.
  std::int32_t max_tokens = std::numeric_limits<std::int32_t>::max();
  /// Time limit: the call ends before a layer that would exceed it, but runs at least one layer.
  double max_ms = std::numeric_limits<double>::infinity();
  /// A chunk that the call begins runs to its end, however long that takes.
  bool whole_chunk = false;
};

/// Selects the records that a prefill makes besides the values.
enum class PrefillRecords : std::uint8_t {
  kRequested,  ///< those of PassResources::more_records, too, which may cost another prefill
  kAlways,     ///< those that ingest always makes
  kNone,       ///< no record and no attention statistics, hence no sketch
};

/// The rows of a finished prefill, which the next context of the same document goes on from.
struct PrefilledRows {
  std::vector<std::int32_t> ids;  ///< left context and context; the ingest prefix is before them
  WorkingCache cache;
};

/// What a prefill reads. The spans must outlive it.
struct ContextTokens {
  std::span<const std::int32_t> ids;           ///< at least one token
  std::span<const std::int32_t> left_context;  ///< attended to, not kept
};

/// Runs [ingest prefix] + left context + tokens chunk by chunk through its own working cache. The
/// result equals, bit for bit, what the store returns. Threads: the engine thread.
class ContextPrefill {
 public:
  /// `core` must outlive it. `rows` may be null; those that begin as the left context does are not
  /// computed again, which changes no bit.
  ContextPrefill(PassResources& core, const ContextTokens& tokens,
                 PrefillRecords records = PrefillRecords::kRequested,
                 std::unique_ptr<PrefilledRows> rows = nullptr);
  ~ContextPrefill();

  bool done() const { return finished_; }
  std::int64_t tokens_done() const { return next_; }  ///< whole chunks only
  double compute_ms() const { return compute_ms_; }   ///< statistics included
  /// Returns the part of compute_ms() for attention statistics.
  double statistics_ms() const { return statistics_ms_; }
  /// Computes one chunk, or some layers of it; after the last chunk, what observers still want.
  /// Errors: kResourceExhausted (no room for its working cache), kInvalidArgument.
  Status step(const PieceLimit& limit = {});
  WorkingCache& cache() { return cache_; }
  /// Returns the result. Call it once, after done().
  std::shared_ptr<const ContextKv> take();
  /// Returns the rows, after done(); nothing else may be called then.
  std::unique_ptr<PrefilledRows> take_rows();

 private:
  /// The chunk that is being computed.
  struct Chunk;
  void begin_chunk(std::int32_t max_tokens);
  void begin_left_chunk(std::int32_t max_tokens);
  void run_chunk(ForwardHook* hook, HiddenTap* tap);
  /// Returns the rows before the context's first.
  std::int64_t rows_before() const;
  Status end_chunk();
  Status run_more(const PieceLimit& limit);
  Status finish();
  std::int64_t rows_left() const;
  PassResources& core_;
  const std::span<const std::int32_t> token_ids_, left_context_;
  std::shared_ptr<ContextKv> kv_;
  WorkingCache cache_;
  const bool keep_statistics_;
  AttentionStatistics statistics_;
  std::vector<ObservedRecord> observers_;
  HiddenTap* tap_ = nullptr;  ///< of an observer, if one has one
  /// Its own workspace, as other passes run between the layers of a chunk.
  ForwardWorkspace workspace_;
  std::unique_ptr<Chunk> chunk_;
  std::int64_t next_ = 0;
  bool finished_ = false;
  double compute_ms_ = 0, statistics_ms_ = 0;
};

/// Builds the context's sketch record, as ingest stores it. Threads: any.
Result<std::vector<std::byte>> context_sketch(const ContextKv& kv, std::int32_t num_heads,
                                              const RopeTable& rope);

}  // namespace quire
