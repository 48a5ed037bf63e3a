/// Finds ranked chunks or documents of a namespace for a question.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "cachestore/store.h"
#include "ingest/search/embedding_index.h"

namespace quire {

enum class RetrieveUnit : std::uint8_t { kChunk, kDocument };
enum class RetrieveScorer : std::uint8_t {
  kAuto,  ///< RetrievalOptions::scorer
  kBm25,
  /// Cosine of the embeddings of question and chunk; documents without one yet are not found.
  kEmbedding,
  /// Fusion of both.
  kHybrid,
};

/// A convex combination of two rankings' scores (Bruch, Gai and Ingber 2023), each scaled to 0..1:
/// BM25 as part of its best, cosines from 0.1 for the least of the ranking to 1 for its best, so
/// that encoders whose cosines are all alike count as much. What a ranking lacks has 0 there.
struct Fusion {
  double meaning = 0.5;  ///< share of the cosines; the rest is that of the words
};
/// With a text encoder, whose ranking is the better one (docs/retrieval.md).
inline constexpr Fusion kEncoderFusion{.meaning = 0.75};

struct RetrievalOptions {
  /// Limit of memory over all namespaces; past it the index lies on disk. 0: no limit.
  std::int64_t max_index_bytes = 512ll << 20;
  /// Limit of that part, which is outside of the store's budget and has no name. Documents past
  /// both limits are not found (RetrievalStats::left_out). 0: nothing lies on disk.
  std::int64_t max_index_disk_bytes = 4ll << 30;
  /// After the disk has refused a part of the index, none is written for this time, because each
  /// try writes all of it. Documents that find no room meanwhile are entered once the disk takes
  /// one again.
  std::chrono::milliseconds refused_pause{30'000};
  /// Language whose words are stemmed (base/stems.h), or `none`.
  std::string language = "english";
  std::optional<EmbeddingOptions> embeddings = {};  ///< none: RetrieveScorer::kBm25 only
  RetrieveScorer scorer = RetrieveScorer::kBm25;    ///< of requests that name none; not kAuto
  Fusion fusion = {};                               ///< of RetrieveScorer::kHybrid
  /// Part of a chunk's score that goes on to the best chunk of each document whose title it names,
  /// from the best chunks; the largest such part counts. By it a text comes to stand at most right
  /// behind the one that names it. Not with kEmbedding. 0: none. Chosen on questions of even rank
  /// (docs/retrieval.md).
  double links = 0.6;
};

struct RetrieveRequest {
  std::string query;
  /// Searches only these; empty: the whole namespace. Unknown ids are skipped.
  std::vector<std::string> document_ids;
  MetadataFilter metadata;
  std::size_t k = 4;
  RetrieveUnit unit = RetrieveUnit::kChunk;
  RetrieveScorer scorer = RetrieveScorer::kAuto;
  std::optional<double> links;  ///< 0..1; none: RetrievalOptions::links
};

struct Passage {
  std::string document_id, title, metadata_json;
  /// Of the version that was searched. Where both are equal, chunks have the same numbers.
  std::string content_hash, chunking;
  std::int32_t chunk = 0;            ///< for kDocument, the chunk with the best score
  std::string text;                  ///< text of the chunk or the whole document
  std::uint64_t start = 0, end = 0;  ///< code points of the document's text
  double score = 0;
  TextPlace place;  ///< pages and heading of `text`
};

struct RetrievalStats {
  bool ready = false;  ///< the index holds every document of the store
  std::uint64_t documents = 0, chunks = 0, left_out = 0;
  std::int64_t memory_bytes = 0, disk_bytes = 0;
  std::optional<EmbeddingStats> embeddings;  ///< none: off
};

/// Okapi BM25 (ingest/index/lexical_index.h) over the stems of title and text of every chunk of
/// every ready document. The index lives in memory, and past a size in files beside the store.
/// start() reads it from the store in the background, and the store's watcher keeps it up to date.
/// A search sees every change that ended before it began.
///
/// With embeddings, EmbeddingIndex does the same for vectors, but later: a document is found by its
/// words at once, and by its meaning once it is embedded.
///
/// Threads: every method from any thread. All but ready(), stats() and changes() may wait on disk,
/// and search() with embeddings for the vector of the question. It has one thread, with embeddings
/// two. The store must outlive it.
class Retrieval {
 public:
  virtual ~Retrieval() = default;  ///< after stop()

  /// Starts to watch the store and to build the index.
  virtual void start() = 0;
  /// Ends the thread; later searches are refused.
  virtual void stop() = 0;
  virtual bool ready() const = 0;
  virtual RetrievalStats stats() const = 0;
  /// Returns how many changes of the namespace's documents the watcher has heard of. It grows
  /// before the maker of a change hears of its end. (no disk)
  virtual std::uint64_t changes(std::string_view ns) const = 0;
  /// Returns what RetrieveScorer::kAuto means.
  virtual RetrieveScorer default_scorer() const = 0;

  /// Returns the best passages first; equal scores by id, then chunk. With kBm25 it returns exactly
  /// k if that many exist; those without a word of the query, and not named by a text with one,
  /// come last with score 0. Passages belong to this namespace only, and text and score are of one
  /// version of each document.
  ///
  /// Errors: kUnavailable (still being built, or stopped), kInvalidArgument (k; scorer: embeddings
  /// are off), kIo, with embeddings also those of EmbeddingIndex::embed().
  virtual Result<std::vector<Passage>> search(std::string_view ns,
                                              const RetrieveRequest& request) = 0;
};

/// Makes a Retrieval. `embedder` makes its vectors; it may be null only without embeddings.
std::unique_ptr<Retrieval> create_retrieval(const RetrievalOptions& options, Store& store,
                                            std::shared_ptr<Embedder> embedder);

}  // namespace quire
