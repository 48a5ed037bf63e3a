/// This file supplies the KV and the sketches of a query's contexts, from the store or computed
/// alone if the store has nothing usable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/prefill/context_kv.h"
#include "engine/query/query_run.h"
#include "engine/record/head_record.h"
#include "engine/record/tail_record.h"
#include "engine/supply/fetch.h"

namespace quire {

/// Reads each value at most once. Anything that cannot be read, has the wrong length or does not
/// parse makes its context a miss, which step_missing() computes; a fault is never an error. Values
/// stay until release(). Threads: the engine thread; block() also kernel threads.
class KvSupply final : public StoredKv {
 public:
  explicit KvSupply(QueryRun& run);

  /// Requests the sketches of all stored contexts.
  void ask_sketches();
  /// Requests the head keys of all stored contexts. A context without keys of the current head is
  /// computed anew.
  void ask_head_keys();
  /// Requests the stored queries of contexts' last tokens. A context without a usable record goes
  /// without.
  void ask_tail_queries();
  /// Requests the blocks of stored contexts that `selection` keeps and that were not requested
  /// before. Groups of layers ascend, so that the lowest layers arrive first.
  void ask_blocks(const Selection& selection);
  /// Processes the values that have arrived from the store.
  void poll();

  /// Returns whether every context with rows has a sketch.
  bool sketches_ready() const;
  /// Returns the context's sketch; null until it has arrived.
  const SketchView* sketch(std::int32_t context) const;
  /// Returns whether every context with rows has head keys.
  bool head_keys_ready() const;
  /// Returns the context's head keys; null until they have arrived.
  const HeadRecordView* head_keys(std::int32_t context) const;
  /// Returns whether every context with rows and a record of queries has it, or found it unusable.
  bool tail_queries_ready() const;
  /// Returns the context's stored queries; null: none.
  const TailRecordView* tail_queries(std::int32_t context) const;
  /// Returns whether all requested values of this context and group have arrived.
  bool ready(std::int32_t context, std::int32_t group) const;
  /// Returns a counter that changes if the context's values are replaced (it became a miss). Rows
  /// placed before must then be placed again.
  std::int32_t generation(std::int32_t context) const { return entry(context).generation; }
  std::span<const std::byte> value(std::int32_t context, std::int32_t block,
                                   std::int32_t group) const;
  /// Returns the raw KV of a block that ask_blocks() requested and that has arrived.
  Result<RawKvView> block(std::int32_t context, std::int32_t block,
                          std::int32_t layer) const override;

  /// Discards stored KV that proved to belong to other tokens: the context is computed alone, and
  /// the store drops its KV so that it is not read again. Errors: kInternal (it was not stored).
  Status distrust(std::int32_t context);
  /// Returns whether some context still has to be computed alone.
  bool missing_left() const;
  /// Computes one chunk of the first such context. Errors: those of ContextPrefill.
  Status step_missing();

  /// held_bytes() returns the page bytes of the context that is being computed, wherever they are.
  /// suspend() moves them to ordinary memory, resume() back.
  std::int64_t held_bytes() const;
  void suspend();
  Status resume();

  /// Releases the values of this context, which are no longer needed.
  void release(std::int32_t context);
  /// Enters the tiers' counts and load_ms into the statistics.
  void report();

 private:
  struct Entry {
    std::vector<std::span<const std::byte>> values;  ///< [block * num_groups + group]
    std::vector<std::uint8_t> asked;                 ///< the same order
    std::vector<PinnedBytes> owners;
    std::shared_ptr<const ContextKv> alone;
    PinnedBytes sketch_bytes;
    std::vector<std::byte> own_sketch;
    std::optional<SketchView> sketch;
    PinnedBytes head_bytes;
    std::vector<std::byte> own_head_record;
    std::optional<HeadRecordView> head_keys;
    PinnedBytes tail_bytes;
    std::vector<std::byte> own_tail_record;
    std::optional<TailRecordView> tail_queries;
    bool tail_asked = false, tail_taken = false;
    std::int32_t generation = 0;
    bool released = false;
  };
  /// A group of reads that were requested together.
  struct Round {
    double start_ms = 0, end_ms = 0;  ///< since the first request; end: the last arrival
  };
  Entry& entry(std::int32_t context) { return entries_[static_cast<std::size_t>(context)]; }
  const Entry& entry(std::int32_t context) const {
    return entries_[static_cast<std::size_t>(context)];
  }
  bool has_rows(std::int32_t context) const;
  bool computed_next(std::int32_t context) const;
  void discard(std::int32_t context);
  void make_miss(std::int32_t context, MissReason reason);
  void take_value(const Fetch::Arrived& arrived);
  void take_sketch(Fetch::Arrived arrived);
  void take_head_keys(Fetch::Arrived arrived);
  void take_tail_queries(Fetch::Arrived arrived);
  bool fits(std::int32_t context, const TailRecordView& tail) const;
  void make_useless(std::int32_t context, const char* what, const std::string& why);
  bool fits(std::int32_t context, const SketchView& sketch) const;
  Status keep_computed(std::int32_t context, const std::shared_ptr<const ContextKv>& kv);
  void submit_write(std::int32_t context, const std::shared_ptr<const ContextKv>& kv);
  void begin_round();

  QueryRun& run_;
  Fetch fetch_;
  std::vector<Entry> entries_;
  std::vector<Round> rounds_;
  bool sketches_wanted_ = false, head_keys_wanted_ = false, tail_queries_wanted_ = false;
  std::unique_ptr<ContextPrefill> missing_;  ///< context that is being computed alone
  std::int32_t missing_context_ = -1;
  std::int64_t read_bytes_[5] = {};
};

}  // namespace quire
