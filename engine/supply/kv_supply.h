/// Brings the KV and the sketches of a query's contexts: from the store, or computed alone where
/// the store has nothing usable.
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

/// Reads each value at most once. Whatever cannot be read, has the wrong length or does not parse
/// turns its context into a miss, which step_missing() computes; a fault is never an error. What
/// arrived stays until release(). Threads: the engine thread; block() also kernel threads.
class KvSupply final : public StoredKv {
 public:
  explicit KvSupply(QueryRun& run);

  /// Reads the sketches of all stored contexts.
  void ask_sketches();
  /// Reads the head keys of all stored contexts. A context without keys of the head in use is
  /// computed anew.
  void ask_head_keys();
  /// Reads the queries that are stored of contexts' last tokens. A context without such a record,
  /// or with one that is of no use, does without.
  void ask_tail_queries();
  /// Reads the blocks of stored contexts that `selection` keeps and that were not asked for before:
  /// groups of layers ascending, so that what the lowest layers need comes first.
  void ask_blocks(const Selection& selection);
  /// Takes notice of what the store answered.
  void poll();

  /// Every context that has rows has a sketch.
  bool sketches_ready() const;
  /// Null until it is there.
  const SketchView* sketch(std::int32_t context) const;
  /// Every context that has rows has head keys.
  bool head_keys_ready() const;
  /// Null until they are there.
  const HeadRecordView* head_keys(std::int32_t context) const;
  /// Every context that has rows and such a record has it here, or has found it of no use.
  bool tail_queries_ready() const;
  /// Null: none.
  const TailRecordView* tail_queries(std::int32_t context) const;
  /// The values of this context and group that were asked for are here.
  bool ready(std::int32_t context, std::int32_t group) const;
  /// Changes when the context's values were replaced (it became a miss): what was placed of it must
  /// be placed again.
  std::int32_t generation(std::int32_t context) const { return entry(context).generation; }
  std::span<const std::byte> value(std::int32_t context, std::int32_t block,
                                   std::int32_t group) const;
  /// Raw KV of a block; what ask_blocks() brought.
  Result<RawKvView> block(std::int32_t context, std::int32_t block,
                          std::int32_t layer) const override;

  /// The context's stored KV turned out to be that of other tokens: it is computed alone instead,
  /// and the store gives it up, so that it is not read again. Errors: kInternal (it was not
  /// stored).
  Status distrust(std::int32_t context);
  /// Some context has to be computed alone.
  bool missing_left() const;
  /// One chunk of the first such context. Errors: those of ContextPrefill.
  Status step_missing();

  /// Pages of the context that is being computed: bytes, wherever they lie now; moved out to
  /// ordinary memory and back in.
  std::int64_t held_bytes() const;
  void suspend();
  Status resume();

  /// The values of this context are not needed any more.
  void release(std::int32_t context);
  /// Fills in the tiers' counts and load_ms.
  void report();

 private:
  struct Entry {
    std::vector<std::span<const std::byte>> values;  ///< [block * num_groups + group]
    std::vector<std::uint8_t> asked;                 ///< the same
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
  /// Reads asked for together.
  struct Round {
    double start_ms = 0, end_ms = 0;  ///< since the first; end: of the last arrival
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
  std::unique_ptr<ContextPrefill> missing_;  ///< being computed alone now
  std::int32_t missing_context_ = -1;
  std::int64_t read_bytes_[5] = {};
};

}  // namespace quire
