/// Stored documents in the tokens of a model other than the one that they were ingested for.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "ingest/admission/pin_gate.h"
#include "ingest/ingest_service.h"

namespace quire {

/// A rendition is made from the stored text at each use, cut where the stored chunks are cut, so
/// it is never older than the document. Nothing of it is stored but the names of its KV, which the
/// document gets as companions: the KV goes when the document goes or changes. The last renditions
/// are remembered, with the content and the settings that they were made of, which saves
/// tokenising.
///
/// Threads: any, concurrently. Methods may wait on disk.
class Renditions {
 public:
  /// Token ids that are remembered, of all documents together.
  static constexpr std::size_t kMostTokens = 4 << 20;

  /// The references must outlive it.
  Renditions(Store& store, Engine& engine, PinGate& pins, const IngestOptions& options)
      : store_(store), engine_(engine), pins_(pins), options_(options) {}

  /// Memory that the pins of one query's documents hold until the query has them all.
  using Grants = std::vector<PinGate::Grant>;

  /// Returns the document with the chunks of this model; one that is not ready as it is stored.
  /// With `grants` its KV is going to be used: the stored document names it from now on, unless it
  /// is text_only, or pinned and pins may hold no more; such a document's keys are zero. Errors:
  /// kNotFound, kInvalidArgument (field "model": a chunk is longer than the model's window), those
  /// of the store.
  Result<DocumentManifest> get(std::string_view ns, std::string_view id, Grants* grants);

  /// Returns how many texts were tokenised.
  std::int64_t made() const;

 private:
  using Chunks = std::shared_ptr<const std::vector<DocumentChunk>>;
  struct Remembered {
    std::string name;         ///< of the document, with its namespace
    DocumentManifest source;  ///< what has_same_chunks() compares; without chunks
    std::size_t tokens = 0;
    Chunks chunks;
  };

  Result<Chunks> chunks_of(const DocumentManifest& manifest);
  Result<Chunks> make(const DocumentManifest& manifest, std::string_view text) const;
  Status keep(const DocumentManifest& stored, DocumentManifest& rendition, Grants& grants);
  Chunks remembered(const DocumentManifest& manifest);
  void remember(const DocumentManifest& manifest, Chunks chunks);

  Store& store_;
  Engine& engine_;
  PinGate& pins_;
  const IngestOptions& options_;

  mutable std::mutex mu_;
  std::list<Remembered> recent_;  // guarded by mu_: latest use first
  std::unordered_map<std::string, std::list<Remembered>::iterator> by_name_;  // guarded by mu_
  std::size_t tokens_ = 0;                                                    // guarded by mu_
  std::int64_t made_ = 0;                                                     // guarded by mu_
};

}  // namespace quire
