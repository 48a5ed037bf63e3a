/// This socket defines the kinds of records that are stored with the KV of a context: how ingest
/// makes one, and how a query reads it.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/api/facts.h"
#include "engine/plug/plug_registry.h"
#include "engine/prefill/context_observer.h"
#include "engine/prefill/pass_resources.h"

namespace quire {

struct ContextKv;

/// What a record of a context must agree with.
struct RecordOwner {
  const EngineFacts& facts;
  const KvLayout& layout;     ///< of the context
  const RetrievalHead* head;  ///< null: none is loaded
};

/// A context whose prefill may be observed. Its references must outlive the observer.
struct ObservedContext {
  const PassResources& core;
  const KvLayout& layout;
  std::span<const std::int32_t> ids;
  std::int64_t rows_before = 0;  ///< as in ChunkRows
};

/// One kind of record; stateless. Threads: any, except observe(), which belongs to the engine
/// thread. A record is read through its view type, such as SketchView; no two kinds share one.
class RecordKind : public NamedPlug<RecordKind> {
 public:
  virtual ~RecordKind() = default;
  /// Returns the record's index among a segment's sketches. It is part of the stored format, so it
  /// never changes, and no two kinds share one.
  virtual std::uint32_t index() const = 0;
  /// Returns what a context without a usable record costs a query that wants it. True: the context
  /// is computed anew. False: the query does without.
  virtual bool required() const = 0;
  /// Returns whether ingest makes the record without being told (EngineOptions::records).
  virtual bool always() const { return true; }
  /// Returns the observer of one context that makes the record; null: this model or this context
  /// has none.
  virtual std::unique_ptr<ContextObserver> observe(const ObservedContext& /*context*/) const {
    return nullptr;
  }
  /// Returns how many rows that observer appends at most behind a context of so many tokens, where
  /// the model's window leaves `room` of them (ContextObserver::run_more()).
  virtual std::int64_t rows_behind(std::int64_t /*num_tokens*/, std::int64_t /*room*/) const {
    return 0;
  }
  /// Returns the record of a prefilled context; empty: it has none. By default it is what the
  /// observer made.
  virtual Result<std::vector<std::byte>> build(const ContextKv& kv, std::int32_t num_heads,
                                               const RopeTable& rope) const;
  /// Returns a view of the record's bytes, which must outlive it. Errors: kCorruption with the
  /// reason, also for the record of another context.
  virtual Result<std::any> parse(std::span<const std::byte> record,
                                 const RecordOwner& owner) const = 0;
};

void register_plugs(PlugRegistry<RecordKind>& plugs);
/// The kinds of this build: the files in engine/prefill/plugs.
inline const PlugRegistry<RecordKind>& record_kinds() {
  return built_plugs<RecordKind>({.field = "records"});
}
/// Returns every kind, by ascending index.
std::span<const std::unique_ptr<RecordKind>> all_record_kinds();
/// Returns the kind with this index, such as kSketchIndex; it must exist.
const RecordKind& record_kind(std::uint32_t index);
/// Returns the most rows that records of a context append behind it while they are made, with those
/// of PassResources::more_records.
std::int64_t rows_behind(const PassResources& core, std::int64_t num_tokens,
                         std::int64_t rows_before);
/// Checks names of kinds that are made only on request. Errors: kInvalidArgument with `field`,
/// naming those that exist.
Status check_record_names(std::span<const std::string> names, std::string_view field);

}  // namespace quire
