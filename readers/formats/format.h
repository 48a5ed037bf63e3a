/// The formats that are read. Each is one source with one read_x(), and one line of format.cc.
/// Readers parse bytes from outside: run them in quire-reader only.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "readers/read_document.h"

namespace quire {

/// Reads a file. Errors: kInvalidArgument (it is not what its type says, or has no text),
/// kFailedPrecondition (protected by a password), kResourceExhausted (past a limit).
using ReadFunction = Result<std::vector<ReadDocument>> (*)(std::string_view bytes,
                                                           const ReaderRequest& request);

struct Format {
  std::string_view name;  ///< for messages: "the <name> reader"
  ReadFunction read;
};

/// Returns the format of a file by its content, and by the ending of its name where the content may
/// be several. Errors: kNotFound (empty), kUnimplemented (a type that is not read; the
/// message says what to do).
Result<const Format*> detect_format(std::string_view bytes, const std::string& name);

/// Sets the PDF reader, which is a library of its own because of its licence.
void set_pdf_reader(ReadFunction read);

/// Makes what a reader returned keep the rules of read_document.h: valid UTF-8 without NUL, marks
/// in order, a title, at most request.limits.text_bytes of text. Errors: kInvalidArgument (no
/// text), kResourceExhausted.
Result<std::vector<ReadDocument>> finish_documents(Result<std::vector<ReadDocument>> read,
                                                   const ReaderRequest& request);

Result<std::vector<ReadDocument>> read_text(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_markdown(std::string_view bytes,
                                                const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_html(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_csv(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_docx(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_xlsx(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_pptx(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_odt(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_epub(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_mbox(std::string_view bytes, const ReaderRequest& request);
Result<std::vector<ReadDocument>> read_eml(std::string_view bytes, const ReaderRequest& request);

}  // namespace quire
