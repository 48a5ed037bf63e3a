/// Bytes of a document's embeddings in the store: a small record of its own, beside the document.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/key.h"
#include "cachestore/store.h"

namespace quire {

/// One vector a chunk, as f16: what an index gets from the record has the same bits as what was
/// entered when it was computed.
struct EmbeddingRecord {
  Digest made_of;  ///< embedding_source() (ingest/embed_text.h)
  std::uint32_t dimension = 0;
  /// [num_chunks, dimension]; a chunk that could not be embedded is all zero
  std::vector<std::uint16_t> values;

  std::size_t num_chunks() const { return dimension == 0 ? 0 : values.size() / dimension; }
  friend bool operator==(const EmbeddingRecord&, const EmbeddingRecord&) = default;
};

std::string encode_embeddings(const EmbeddingRecord& record);
/// Errors: kCorruption. Refuses whatever encode_embeddings() would not write.
Result<EmbeddingRecord> decode_embeddings(std::string_view bytes);

/// Name of the record among the store's small ones.
std::string embedding_record_name(std::string_view ns, std::string_view id);
/// Deletes the record if there is one. Errors: kIo.
Status erase_embeddings(Store& store, std::string_view ns, std::string_view id);

}  // namespace quire
