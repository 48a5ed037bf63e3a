/// This file supplies the KV and the sketches of a query's contexts, from the store or computed
/// alone if the store has nothing usable.
#pragma once

#include <any>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/prefill/context_kv.h"
#include "engine/prefill/record_kind.h"
#include "engine/query/query_run.h"
#include "engine/supply/early_contexts.h"
#include "engine/supply/fetch.h"

namespace quire {

/// Reads each value at most once. Anything that cannot be read, has the wrong length or does not
/// parse makes its context a miss, which step_missing() computes; a fault is never an error. Values
/// stay until release(). Threads: the engine thread; block() also kernel threads.
class KvSupply final : public StoredKv {
 public:
  /// `early` may be null; what it has is not computed again.
  explicit KvSupply(QueryRun& run, std::unique_ptr<EarlyContexts> early = nullptr);

  /// Requests the records of this kind of all stored contexts. A context without a usable one is
  /// computed anew if the kind is required(), else it goes without.
  void ask_records(const RecordKind& kind);
  /// Requests the blocks of stored contexts that `selection` keeps and that were not requested
  /// before. Groups of layers ascend, so that the lowest layers arrive first.
  void ask_blocks(const Selection& selection);
  /// Processes the values that have arrived from the store.
  void poll();

  /// Returns whether every context has the requested records, or goes without them.
  bool records_ready() const;
  /// Returns the context's record as a view of type View, such as SketchView; null: it was not
  /// requested, has not arrived, or the context goes without it.
  template <class View>
  const View* record(std::int32_t context) const {
    for (const Record& r : entry(context).records) {
      if (const View* view = std::any_cast<View>(&r.view)) return view;
    }
    return nullptr;
  }
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
  /// suspend() moves them to ordinary memory, resume() back. Where there is no memory for them, the
  /// context is computed anew. Errors: those of WorkingCache::move_in(); nothing changes.
  std::int64_t held_bytes() const;
  void suspend();
  Status resume();

  /// Releases the values of this context, which are no longer needed.
  void release(std::int32_t context);
  /// Enters the tiers' counts and load_ms into the statistics.
  void report();

 private:
  /// One requested record of a context.
  struct Record {
    PinnedBytes stored;
    std::vector<std::byte> own;  ///< of a context that was computed alone
    std::any view;               ///< empty: not here, or unusable
    bool settled = false;        ///< it is here, or the context goes without it
  };
  struct Entry {
    std::vector<std::span<const std::byte>> values;  ///< [block * num_groups + group]
    std::vector<std::uint8_t> asked;                 ///< the same order
    std::vector<PinnedBytes> owners;
    std::shared_ptr<const ContextKv> alone;
    std::vector<Record> records;  ///< [kinds_]
    std::int32_t generation = 0;
    bool released = false;
  };
  /// A group of reads that were requested together.
  struct Round {
    double start_ms = 0, end_ms = 0;  ///< since the first request; end: the last arrival
  };
  Entry& entry(std::int32_t context) { return entries_[at(context)]; }
  const Entry& entry(std::int32_t context) const { return entries_[at(context)]; }
  bool has_rows(std::int32_t context) const;
  bool computed_next(std::int32_t context) const;
  void discard(std::int32_t context);
  void make_miss(std::int32_t context, MissReason reason);
  void take_value(const Fetch::Arrived& arrived);
  void take_record(Fetch::Arrived arrived);
  void make_useless(std::int32_t context, const RecordKind& kind, const std::string& why);
  Status keep_computed(std::int32_t context, const std::shared_ptr<const ContextKv>& kv);
  void begin_round();

  QueryRun& run_;
  Fetch fetch_;
  std::vector<Entry> entries_;
  std::vector<Round> rounds_;
  std::vector<const RecordKind*> kinds_;     ///< requested
  std::unique_ptr<EarlyContexts> early_;     ///< null: nothing was computed before
  std::unique_ptr<ContextPrefill> missing_;  ///< context that is being computed alone
  std::unique_ptr<PrefilledRows> rows_;      ///< of the one before, while another is missing
  std::int32_t missing_context_ = -1;
  std::int64_t read_bytes_[5] = {};      ///< by the tier that they were read from
  std::int64_t recalled_bytes_[5] = {};  ///< of those, what a shared tier had sent for this query
};

}  // namespace quire
