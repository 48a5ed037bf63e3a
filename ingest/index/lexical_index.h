/// Okapi BM25 over the chunks of one namespace, in memory and, past a size, on disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "ingest/index/chunk_hit.h"
#include "ingest/index/lexical_file.h"

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
  std::uint64_t version = 0;  ///< chosen by the caller; not 0
  std::string metadata_json;  ///< JSON text as in the manifest
  /// Words of each chunk, including those of the title.
  std::vector<std::vector<std::string>> chunks;
};

/// Threads: const methods concurrently, others exclusively. In memory each different word of a
/// chunk costs about 16 bytes; each different word of the namespace is stored once. spill() moves
/// what is in memory to a file; results stay the same.
class LexicalIndex {
 public:
  explicit LexicalIndex(const Bm25& bm25 = {}) : bm25_(bm25) {}

  /// Replaces the document. A chunk may have no words.
  void put(const IndexedDocument& document);
  /// Removes the document. Returns false if it is not indexed.
  bool remove(std::string_view id);
  /// Moves all documents in memory to a new file in `folder`. Errors: kIo, kResourceExhausted; the
  /// index is then unchanged.
  Status spill(const std::string& folder);
  /// Drops files of which most documents were removed. Returns the documents that were still in
  /// them, which must be put again.
  std::vector<std::string> drop_sparse_files();

  using Filter = std::function<bool(const std::string& id, const std::string& metadata_json)>;
  /// Returns at most `limit` chunks of the documents that pass `filter` (empty: all), best first.
  /// Equal scores are ordered by id, then chunk; chunks without a word of the query score 0. With
  /// kBestChunkOfDocument each document has one chunk, its best. Statistics always cover the whole
  /// namespace.
  enum class Unit : std::uint8_t { kChunk, kBestChunkOfDocument };
  using Ids = std::set<std::string>;
  /// Of each list a document that passes the filter has at least one term of metadata
  /// (filter_terms()).
  using Terms = std::vector<std::vector<std::string>>;
  /// `only` names the documents that are looked at, without reading others (null: all), and of
  /// those on disk only such as have `terms` are read. Errors: kIo (a file cannot be read).
  Result<std::vector<ChunkHit>> search(const std::vector<std::string>& query, std::size_t limit,
                                       Unit unit, const Filter& filter = {},
                                       const Ids* only = nullptr, const Terms& terms = {}) const;

  /// Returns the version of an indexed document; 0: not indexed.
  std::uint64_t version(std::string_view id) const;
  std::size_t num_documents() const;
  std::size_t num_chunks() const;
  /// Returns an estimate by counting, not a measurement.
  std::int64_t memory_bytes() const;
  /// Returns the part of it that spill() frees.
  std::int64_t spillable_bytes() const { return document_bytes_ + term_bytes_; }
  std::int64_t disk_bytes() const;
  std::size_t num_files() const { return files_.size(); }

 private:
  using Posting = LexicalPosting;
  struct Candidate {
    double score = 0;
    std::string id;
    std::uint32_t chunk = 0;
    std::uint64_t version = 0;
  };
  struct Scores {
    std::vector<double> memory;                     ///< by slot
    std::vector<std::vector<double>> files;         ///< by file and chunk
    std::vector<std::vector<std::uint32_t>> found;  ///< by file: chunks with a word of the query
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
  /// Adds a chunk and returns its bytes.
  std::int64_t add_chunk(std::uint32_t slot, const std::vector<std::string>& words);
  void drop_chunk(std::uint32_t slot);
  void compact();
  Result<Scores> scores(const std::vector<std::string>& query) const;
  Status find_in_file(std::size_t file, const Scores& scores, std::size_t limit, Unit unit,
                      const Filter& filter, const Ids* only, const Terms& terms,
                      std::vector<Candidate>* found) const;

  Bm25 bm25_;
  std::map<std::string, Document, std::less<>> documents_;
  std::unordered_map<std::string, std::uint32_t> term_ids_;
  std::vector<Term> terms_;
  std::vector<std::vector<std::uint32_t>> chunk_terms_;  ///< by slot; different terms
  std::vector<std::uint32_t> chunk_words_;               ///< by slot
  std::size_t num_chunks_ = 0;                           ///< chunks in memory, not deleted
  std::uint64_t num_words_ = 0;                          ///< words in them
  std::vector<LexicalFile> files_;
  std::int64_t document_bytes_ = 0, term_bytes_ = 0;
};

}  // namespace quire
