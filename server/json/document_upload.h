/// Reads documents from bodies that are not one JSON text: NDJSON and forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "server/json/document_request.h"

namespace quire {

/// One part of a form. It points into the form's body.
struct FormPart {
  std::string name;
  std::optional<std::string> file;  ///< name of the file; none: the part is a field
  std::string_view content;
};
/// Reads multipart/form-data part by part, until `take` returns an error.
std::optional<JsonError> read_form(
    std::string_view body, const std::string& boundary,
    const std::function<std::optional<JsonError>(const FormPart&)>& take);

/// Reads multipart/form-data. A part with a file name is a document. A part without one is an
/// option, or title/id/metadata if there is only one document.
/// A form of one document is not a batch (BatchOptions::in_batch). Bytes of files are their
/// documents' texts as they came, and DocumentBatch::files names them.
std::optional<JsonError> read_multipart(std::string_view body, const std::string& boundary,
                                        std::size_t max_documents, DocumentBatch& out);
/// The same for one document whose id is known. Errors: more than one, or another id.
std::optional<JsonError> read_multipart_put(std::string_view body, const std::string& boundary,
                                            const std::string& id, DocumentBatch& out);

/// Makes texts of the batch's files as they are, titled and described by their names, where no
/// quire-reader reads them. Errors: a file that is not UTF-8, which only quire-reader could read.
std::optional<JsonError> take_files_as_text(DocumentBatch& batch);

/// Returns the text without the byte order mark that some editors put before UTF-8.
std::string without_byte_order_mark(std::string_view text);

/// Reads application/x-ndjson: one document object per line; blank lines are skipped.
class NdjsonReader {
 public:
  /// Fills `out` with the next bytes of the body and returns their number; 0: the end.
  using Source = std::function<Result<std::size_t>(std::span<char> out)>;
  explicit NdjsonReader(Source source) : source_(std::move(source)) {}

  /// Reads the next document into `out`; none at the end. An error ends the reading; it names the
  /// line. Beyond the longest line, one buffer is kept in memory.
  std::optional<JsonError> next(std::optional<DocumentInput>& out);
  std::uint64_t num_documents() const { return num_documents_; }  ///< read so far

 private:
  /// Sets `line_`; false: the body has ended.
  Result<bool> next_line();

  const Source source_;
  std::uint64_t line_number_ = 0, num_documents_ = 0;
  std::string buffer_;  // bytes read and not yet returned begin at at_
  std::size_t at_ = 0;
  std::string_view line_;  // points into buffer_
};

}  // namespace quire
