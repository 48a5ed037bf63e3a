#include "readers/formats/format.h"
#include "readers/formats/text_encoding.h"

namespace quire {

Result<std::vector<ReadDocument>> read_text(std::string_view bytes, const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(DecodedText decoded, decode_text(bytes, request.encoding));
  ReadDocument document;
  document.text = std::move(decoded.text);
  document.warnings = std::move(decoded.warnings);
  return std::vector<ReadDocument>{std::move(document)};
}

}  // namespace quire
