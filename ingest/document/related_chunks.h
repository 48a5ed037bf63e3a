/// Chunks of other documents that the KV of a document sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/format/read_behind.h"
#include "cachestore/store.h"
#include "engine/chat/chat_template.h"

namespace quire {

/// A chunk that a search has found.
struct FoundChunk {
  std::string document_id;
  std::int32_t chunk = 0;
};
/// Returns up to `most` chunks of a namespace that have words of a text, best first. Errors:
/// kUnavailable (the index is not complete yet), those of reading it. Threads: any.
using FindChunks = std::function<Result<std::vector<FoundChunk>>(
    std::string_view ns, const std::string& text, std::size_t most)>;

/// Chooses related chunks. The store and `find` must outlive it. Threads: any. (disk)
class RelatedChunks {
 public:
  /// `may_be_seen` says which documents others may see.
  RelatedChunks(Store& store, const FindChunks& find,
                std::function<bool(const DocumentManifest&)> may_be_seen)
      : store_(store), find_(find), may_be_seen_(std::move(may_be_seen)) {}

  /// Returns the chunks of other documents that the words of this document find, of `most_tokens`
  /// tokens at most, the best one last and so next to the document. They are of the document's
  /// namespace, salt and fingerprint. `text` is the document's text, of which the beginning is
  /// enough; `chunks` is the number of its chunks, which are found, too. Errors: those of
  /// FindChunks and the store.
  Result<std::vector<RelatedChunk>> choose(const DocumentManifest& document, std::string_view text,
                                           std::size_t chunks, std::int64_t most_tokens) const;
  /// Returns whether every document that the KV of `document` has seen still is in the store with
  /// the text that it had, and may still be seen by it.
  Result<bool> are_current(const DocumentManifest& document) const;

 private:
  bool may_see(const DocumentManifest& document, const DocumentManifest& other) const {
    return other.status == DocumentStatus::kReady && other.salt_digest == document.salt_digest &&
           may_be_seen_(other);
  }
  Store& store_;
  const FindChunks& find_;
  const std::function<bool(const DocumentManifest&)> may_be_seen_;
};

/// Returns a short text of no subject that stands before a document (ChunkingOptions::lead_in).
Result<RelatedChunk> lead_in(const PromptFormat& format);
/// Returns how documents are read that stand behind nothing but that text.
Result<ReadBehind> read_behind_lead_in(const PromptFormat& format);

/// Returns whether both name the same chunks of the same texts.
bool same_chunks(const std::vector<RelatedChunk>& a, const std::vector<RelatedChunk>& b);

}  // namespace quire
