/// Reads documents from bodies that are not one JSON text: NDJSON and forms.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/json/document_request.h"

namespace quire {

/// Reads multipart/form-data. A part with a file name is a document. A part without one is an
/// option, or title/id/metadata if there is only one document.
std::optional<JsonError> read_multipart(std::string_view body, const std::string& boundary,
                                        std::size_t max_documents, DocumentBatch& out);

/// Reads application/x-ndjson as it arrives: one document per line.
class NdjsonReader {
 public:
  explicit NdjsonReader(std::size_t max_documents) : max_documents_(max_documents) {}
  std::optional<JsonError> feed(std::string_view piece);
  /// Ends the input. The last line may lack its newline.
  std::optional<JsonError> finish();
  std::vector<DocumentInput> take() { return std::move(documents_); }

 private:
  std::optional<JsonError> line(std::string_view text);
  const std::size_t max_documents_;
  std::size_t line_number_ = 0;
  std::string rest_;
  std::vector<DocumentInput> documents_;
};

}  // namespace quire
