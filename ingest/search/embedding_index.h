/// Finds chunks by the embedding of a question, among embeddings of every chunk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cachestore/store.h"
#include "ingest/embed/embedder.h"
#include "ingest/index/chunk_hit.h"
#include "ingest/index/embedding_record.h"
#include "ingest/index/vector_index.h"

namespace quire {

struct EmbeddingOptions {
  /// Limit of memory over all namespaces; past it vectors lie on disk. 0: no limit.
  std::int64_t max_bytes = 512ll << 20;
  /// Limit of that part, which is outside of the store's budget and has no name. Documents past
  /// both limits are not found. 0: nothing lies on disk.
  std::int64_t max_disk_bytes = 4ll << 30;
  std::int64_t exact_vectors =
      10'000;  ///< a namespace with more is searched through lists (ingest/index/vector_index.h)
};

struct EmbeddingStats {
  std::uint64_t documents = 0, chunks = 0;  ///< documents and chunks that can be found
  std::uint64_t pending = 0;                ///< documents waiting to be examined or embedded
  std::uint64_t failed = 0;                 ///< documents that could not be read or embedded
  /// Documents past both limits, and those whose vectors the disk did not give back.
  std::uint64_t left_out = 0;
  std::int64_t memory_bytes = 0, disk_bytes = 0;
  bool exact = true;  ///< no namespace is searched through lists
};

/// Holds one vector per chunk, of the title its KV was computed with and its text. Vectors are
/// computed document by document, and kept in the store and in the index. A document with a
/// matching record of the same embedder is not computed again. Until a document is processed, it is
/// not found.
///
/// Past max_bytes vectors move to a file of their namespace beside the store. Documents that could
/// not be written or read there are left out, which the log says.
///
/// Threads: every method from any thread. A thread of the index computes vectors and updates it.
/// The store must outlive it.
class EmbeddingIndex {
 public:
  EmbeddingIndex(const EmbeddingOptions& options, Store& store, std::shared_ptr<Embedder> embedder);
  ~EmbeddingIndex();

  /// Enters the store's documents, then follows changed(). The store's watcher must already be
  /// active.
  void start();
  /// Ends the thread and the questions that wait for their vectors.
  void stop();
  /// Schedules another look at this document. It returns quickly.
  void changed(std::string_view ns, std::string_view id);
  EmbeddingStats stats() const;

  /// Returns the vector of a question. Errors: those of Embedder::embed(), of which
  /// kDeadlineExceeded comes after 10 s.
  Result<std::vector<float>> embed(std::string_view question);

  enum class Unit : std::uint8_t { kChunk, kBestChunkOfDocument };
  struct Search {
    std::size_t limit = 4;
    Unit unit = Unit::kChunk;
    /// Empty: all. With a filter the search is exact.
    std::function<bool(const std::string& id, const std::string& metadata_json)> filter;
    /// Empty: all. Refused versions are skipped.
    std::function<bool(const std::string& id, std::uint64_t version)> current;
  };
  /// Returns the best hits first. Scores are cosines; equal scores are ordered by id, then chunk.
  /// Errors: kIo (`vector` has another length than the vectors of texts), those of VectorIndex.
  Result<std::vector<ChunkHit>> search(std::string_view ns, std::span<const float> vector,
                                       const Search& search) const;

 private:
  using DocumentName = std::pair<std::string, std::string>;  // namespace, id
  struct Document {
    std::uint64_t version = 0;
    std::string metadata_json;
    Digest made_of;
    std::vector<std::int64_t> labels;  ///< labels of the chunks that have a vector, ascending
  };
  struct Place {
    const std::string* id;
    const Document* document;
    std::int32_t chunk;
  };
  struct Space {
    std::optional<VectorIndex> vectors;
    std::map<std::string, Document, std::less<>> documents;
    std::unordered_map<std::int64_t, Place> places;  ///< by label
    std::int64_t entry_bytes = 0;                    ///< estimate for documents and places
    std::int64_t next_label = 0;
    std::int64_t sorted_size = 0;  ///< number of vectors when the lists were made
  };
  enum class Missing : std::uint8_t { kPutOff, kCompute };

  void work(const std::stop_token& stop);
  void list_documents(const std::stop_token& stop);
  bool take(const std::stop_token& stop, DocumentName& name, Missing& missing);
  Status look_at(const DocumentName& name, Missing missing, const std::stop_token& stop);
  bool refresh_entry(const DocumentName& name, const DocumentManifest& head, const Digest& made_of);
  Result<EmbeddingRecord> compute(const DocumentManifest& head, std::string_view text,
                                  const Digest& made_of, const std::stop_token& stop);
  Status enter(const DocumentName& name, const DocumentManifest& head,
               const EmbeddingRecord& record);
  Status add(std::string_view ns, Space& space, const std::string& id, const DocumentManifest& head,
             const EmbeddingRecord& record, std::span<const std::int32_t> chunks,
             std::span<const std::uint16_t> vectors);
  Status make_room();
  void leave_out(const DocumentName& name, const Status& reason);
  void drop(const DocumentName& name);
  Status remove(Space& space, std::string_view id);
  Result<VectorIndex> make_vectors(std::string_view ns, std::uint32_t dimension) const;
  void sort_into_lists(const std::string& ns);
  bool wants_other_lists(const Space& space) const;
  void report_unreadable(std::string_view ns, const Space& space,
                         std::span<const std::int64_t> labels) const;
  std::int64_t memory_bytes() const;
  std::int64_t disk_bytes() const;
  static std::int64_t entry_bytes(std::string_view id, const Document& document);

  const EmbeddingOptions options_;
  Store& store_;
  const std::shared_ptr<Embedder> embedder_;
  std::stop_source stop_;

  mutable std::mutex mu_;
  mutable std::condition_variable_any wake_;
  mutable std::set<DocumentName> changes_;  // guarded by mu_: to be examined
  std::set<DocumentName> missing_;          // guarded by mu_: must be computed; after changes_
  std::set<DocumentName> failed_;           // guarded by mu_
  // Guarded by mu_: searches could not read their vectors; in changes_, too.
  mutable std::set<DocumentName> unreadable_;
  // Guarded by mu_: a document is being examined, or the store is still being listed.
  bool busy_ = true;

  mutable std::shared_mutex index_mu_;
  // Guarded by index_mu_; changed by the index's thread only.
  std::map<std::string, Space, std::less<>> spaces_;
  std::set<DocumentName> left_out_;  // guarded by index_mu_
  bool unkept_ = false;              // the last vectors were not stored; its thread only
  std::thread thread_;
};

}  // namespace quire
