/// Finding documents for a question: ranked chunks or documents of a namespace.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/store.h"
#include "ingest/embedding_index.h"

namespace quire {

struct RetrievalOptions {
  /// Of all namespaces; documents past it are not found (RetrievalStats::left_out). 0: no limit
  std::int64_t max_index_bytes = 512ll << 20;
  std::optional<EmbeddingOptions> embeddings;  ///< none: RetrieveScorer::kBm25 only
};

enum class RetrieveUnit : std::uint8_t { kChunk, kDocument };
enum class RetrieveScorer : std::uint8_t {
  kBm25,
  /// Cosine of the embeddings of question and chunk; documents without one yet are not found
  kEmbedding,
  /// Reciprocal rank fusion of both: the sum of 1 / (60 + rank) over the rankings a chunk is in
  kHybrid,
};

struct RetrieveRequest {
  std::string query;
  /// Only among these; empty: the whole namespace. Unknown ids are passed over
  std::vector<std::string> document_ids;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< equality, as DocumentFilter
  std::size_t k = 4;
  RetrieveUnit unit = RetrieveUnit::kChunk;
  RetrieveScorer scorer = RetrieveScorer::kBm25;
};

struct Passage {
  std::string document_id, title, metadata_json;
  std::int32_t chunk = 0;            ///< kDocument: the one that gave the score
  std::string text;                  ///< of the chunk or the whole document
  std::uint64_t start = 0, end = 0;  ///< code points of the document's text
  double score = 0;
};

struct RetrievalStats {
  bool ready = false;  ///< the index holds every document of the store
  std::uint64_t documents = 0, chunks = 0, left_out = 0;
  std::int64_t memory_bytes = 0;
  std::optional<EmbeddingStats> embeddings;  ///< none: off
};

/// Okapi BM25 (ingest/lexical_index.h) over title and text of every chunk of every ready document.
/// The index lives in memory: start() reads it out of the store in the background, the store's
/// watcher keeps it up to date, and a search sees every change that ended before it began.
///
/// With embeddings, EmbeddingIndex does the same for vectors, behind the changes: a document is
/// found by its words at once, by its meaning when its turn has come.
///
/// Threads: every method from any thread; all but ready() and stats() may wait on disk, and
/// search() with embeddings for the engine. One thread of its own, one more with embeddings. Store
/// and engine must outlive it.
class Retrieval {
 public:
  virtual ~Retrieval() = default;  ///< stop() first

  /// Begins to watch the store and to build the index.
  virtual void start() = 0;
  /// Ends the thread; searches are refused from then on.
  virtual void stop() = 0;
  virtual bool ready() const = 0;
  virtual RetrievalStats stats() const = 0;

  /// Best first; with kBm25 exactly k if that many exist, those without a word of the query last
  /// with score 0; equal scores by id, then chunk. Never another namespace's. Texts and scores are
  /// of one version of each document. Errors: kUnavailable (still being built, or stopped),
  /// kInvalidArgument (k; scorer: embeddings are off), kIo, with embeddings also those of
  /// EmbeddingIndex::embed().
  virtual Result<std::vector<Passage>> search(std::string_view ns,
                                              const RetrieveRequest& request) = 0;
};

/// `engine` computes embeddings; null only without them.
std::unique_ptr<Retrieval> create_retrieval(const RetrievalOptions& options, Store& store,
                                            Engine* engine);

}  // namespace quire
