/// Okapi BM25 over the chunks of one namespace, in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ingest/chunk_hit.h"

namespace quire {

/// For a query of terms q (each occurrence counts) and a chunk d of |d| words, N chunks of
/// `average` words, n(q) of them with q:
///   score(d) = sum_q idf(q) * f(q, d) * (k1 + 1) / (f(q, d) + k1 * (1 - b + b * |d| / average)),
///   idf(q) = ln(1 + (N - n(q) + 0.5) / (n(q) + 0.5))
struct Bm25 {
  double k1 = 1.2, b = 0.75;
};

struct IndexedDocument {
  std::string id;
  std::uint64_t version = 0;                     ///< the caller's; not 0
  std::string metadata_json;                     ///< as in the manifest
  std::vector<std::vector<std::string>> chunks;  ///< words of each, those of the title among them
};

/// Threads: const methods concurrently, others alone. Costs about 16 bytes for each different word
/// of a chunk, and each different word of the namespace once.
class LexicalIndex {
 public:
  explicit LexicalIndex(const Bm25& bm25 = {}) : bm25_(bm25) {}

  /// Replaces the document. A chunk may have no words.
  void put(const IndexedDocument& document);
  /// False: it is not there.
  bool remove(std::string_view id);

  using Filter = std::function<bool(const std::string& id, const std::string& metadata_json)>;
  /// Every chunk of the documents that pass `filter` (empty: all), best first; equal scores by id,
  /// then chunk. Chunks without a word of the query have 0. At most `limit`. One chunk a document,
  /// its best, with kBestChunkOfDocument. Statistics are those of the whole namespace, whatever the
  /// filter.
  enum class Unit : std::uint8_t { kChunk, kBestChunkOfDocument };
  std::vector<ChunkHit> search(const std::vector<std::string>& query, std::size_t limit, Unit unit,
                               const Filter& filter = {}) const;

  /// Version of an indexed document; 0: not indexed.
  std::uint64_t version(std::string_view id) const;
  std::size_t num_documents() const { return documents_.size(); }
  std::size_t num_chunks() const { return num_chunks_; }
  /// Counted, not measured.
  std::int64_t memory_bytes() const { return document_bytes_ + term_bytes_; }

 private:
  struct Posting {
    std::uint32_t chunk;  ///< slot
    std::uint32_t count;  ///< 0: deleted
  };
  struct Term {
    std::vector<Posting> postings;  ///< ascending slots
    std::uint32_t live = 0;
  };
  struct Document {
    std::uint64_t version = 0;
    std::string metadata_json;
    std::uint32_t first_slot = 0, num_chunks = 0;
    std::int64_t bytes = 0;
  };
  /// Returns its bytes.
  std::int64_t add_chunk(std::uint32_t slot, const std::vector<std::string>& words);
  void drop_chunk(std::uint32_t slot);
  void compact();
  std::vector<double> scores(const std::vector<std::string>& query) const;
  double average_words() const {
    return num_chunks_ == 0 ? 0
                            : static_cast<double>(num_words_) / static_cast<double>(num_chunks_);
  }

  Bm25 bm25_;
  std::map<std::string, Document, std::less<>> documents_;
  std::unordered_map<std::string, std::uint32_t> term_ids_;
  std::vector<Term> terms_;
  std::vector<std::vector<std::uint32_t>> chunk_terms_;  ///< [slot], different terms
  std::vector<std::uint32_t> chunk_words_;               ///< [slot]
  std::size_t num_chunks_ = 0;                           ///< alive
  std::uint64_t num_words_ = 0;                          ///< in them
  std::int64_t document_bytes_ = 0, term_bytes_ = 0;
};

}  // namespace quire
