// Stored embeddings: an accepted record must encode to the same bytes. Everything else must be
// refused without reading past the end.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ingest/index/embedding_record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto record = quire::decode_embeddings(bytes);
  if (record.ok() && quire::encode_embeddings(*record) != bytes) std::abort();
  return 0;
}
