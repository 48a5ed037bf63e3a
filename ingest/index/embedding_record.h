/// The bytes of a document's embeddings in the store: a small record separate from the document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"
#include "cachestore/store.h"

namespace quire {

/// Holds one vector per chunk as f16. The index gets the same bits from the record as were entered
/// when the vectors were computed.
struct EmbeddingRecord {
  Digest made_of;  ///< embedding_source() (ingest/search/embed_text.h)
  std::uint32_t dimension = 0;
  /// [num_chunks, dimension]; a chunk that could not be embedded is all zero.
  std::vector<std::uint16_t> values;

  std::size_t num_chunks() const { return dimension == 0 ? 0 : values.size() / dimension; }
  friend bool operator==(const EmbeddingRecord&, const EmbeddingRecord&) = default;
};

std::string encode_embeddings(const EmbeddingRecord& record);
/// Decodes a record and refuses anything that encode_embeddings() would not write. Errors:
/// kCorruption.
Result<EmbeddingRecord> decode_embeddings(std::string_view bytes);

/// Returns the name of the record among the store's small records.
std::string embedding_record_name(std::string_view ns, std::string_view id);
/// Returns the name of the record that keeps the centres of a namespace's lists. Its `made_of` is
/// the embedder's fingerprint, and its rows are centres in place of chunks.
std::string embedding_lists_name(std::string_view ns);
/// Deletes the record if there is one. Errors: kIo.
Status erase_embeddings(Store& store, std::string_view ns, std::string_view id);

}  // namespace quire
