/// The part of a BM25 index that lies on disk: documents that were in memory, in a file without a
/// name that goes with the process.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "ingest/index/scratch_file.h"

namespace quire {

struct LexicalPosting {
  std::uint32_t chunk;  ///< number in its index or file
  std::uint32_t count;  ///< 0: deleted
};

/// A file is written once; later its documents can only be struck out. Per document 8 bytes and per
/// chunk 8 bytes stay in memory, beside every 64th word and every 128th term of metadata. Threads:
/// const methods concurrently, others exclusively. Errors of reads: kIo.
class LexicalFile {
 public:
  struct Row {
    std::string_view id;
    std::uint64_t version = 0;
    std::string_view metadata_json;
    std::uint32_t first_chunk = 0, num_chunks = 0;
  };
  struct Contents {
    std::vector<Row> rows;  ///< ordered by id; together they have every chunk once
    /// Words in order, each with its postings by ascending chunk.
    std::vector<std::pair<std::string_view, std::span<const LexicalPosting>>> words;
    std::span<const std::uint32_t> chunk_words;  ///< number of words of each chunk
  };
  /// Writes a file in `folder`. Errors: kIo, kResourceExhausted (disk full).
  static Result<LexicalFile> write(const std::string& folder, const Contents& contents);

  struct Document {
    std::string id, metadata_json;
    std::uint64_t version = 0;
    std::uint32_t first_chunk = 0, num_chunks = 0;
  };
  Result<Document> document(std::uint32_t row) const;
  /// Returns the row of a document that is not struck out.
  Result<std::optional<std::uint32_t>> find(std::string_view id) const;
  /// Returns the postings of a word, without those of documents that are struck out.
  Result<std::vector<LexicalPosting>> postings(std::string_view word) const;

  /// Returns the rows that may have one of these terms of metadata (cachestore/format/metadata.h),
  /// ascending, without those that are struck out.
  Result<std::vector<std::uint32_t>> rows_with(std::span<const std::string> terms) const;

  /// Strikes a document out.
  Status remove(std::uint32_t row);
  bool is_live(std::uint32_t row) const { return live_[row]; }
  std::uint32_t row_of(std::uint32_t chunk) const { return row_of_[chunk]; }
  std::uint32_t words_of(std::uint32_t chunk) const { return chunk_words_[chunk]; }
  std::uint32_t num_rows() const { return static_cast<std::uint32_t>(row_offsets_.size()); }
  std::uint32_t num_all_chunks() const { return static_cast<std::uint32_t>(row_of_.size()); }

  // Without documents that are struck out.
  std::uint64_t num_documents() const { return num_documents_; }
  std::uint64_t num_chunks() const { return num_chunks_; }
  std::uint64_t num_words() const { return num_words_; }

  std::int64_t memory_bytes() const;
  std::int64_t disk_bytes() const { return static_cast<std::int64_t>(end_); }

 private:
  explicit LexicalFile(ScratchFile file) : file_(std::move(file)) {}

  ScratchFile file_;
  std::vector<std::uint64_t> row_offsets_;
  std::vector<bool> live_;                                         // by row
  std::vector<std::uint32_t> row_of_, chunk_words_;                // by chunk
  std::vector<std::pair<std::string, std::uint64_t>> some_words_;  // every 64th, and its offset
  std::size_t word_bytes_ = 0;                                     // of some_words_
  std::vector<std::uint64_t> some_terms_;                          // every 128th
  std::uint64_t num_terms_ = 0;                                    // of all rows together
  std::uint64_t words_end_ = 0, end_ = 0;                          // offsets; terms are in between
  std::uint64_t num_documents_ = 0, num_chunks_ = 0, num_words_ = 0;
};

}  // namespace quire
