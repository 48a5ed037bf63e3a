#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/table_lines.h"
#include "readers/formats/text_encoding.h"

namespace quire {
namespace {

using Row = TableLines::Row;

/// Reads the next row of RFC 4180, where a quoted field may hold separators, quotes and lines.
Row next_row(std::string_view text, std::size_t& at, char separator) {
  Row row;
  std::string field;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '"' && text.substr(at, 2) == "\"\"") {
        field += '"';
        ++at;
      } else if (c == '"') {
        quoted = false;
      } else {
        field += c;
      }
    } else if (c == '"' && field.empty()) {
      quoted = true;
    } else if (c == separator) {
      row.push_back(squeezed(field));
      field.clear();
    } else if (c == '\n') {
      ++at;
      break;
    } else {
      field += c;
    }
  }
  row.push_back(squeezed(field));
  return row;
}

/// The separator that splits the first rows into the same number of fields, the most of them.
char find_separator(std::string_view text) {
  char best = ',';
  std::size_t best_fields = 1;
  for (const char candidate : {',', ';', '\t', '|'}) {
    std::size_t at = 0, fields = 0;
    bool same = true;
    for (int i = 0; i < 5 && at < text.size(); ++i) {
      const auto row = next_row(text, at, candidate);
      if (row.size() == 1 && row[0].empty()) continue;
      if (fields == 0) fields = row.size();
      same = same && row.size() == fields;
    }
    if (same && fields > best_fields) {
      best = candidate;
      best_fields = fields;
    }
  }
  return best;
}

}  // namespace

/// Each row becomes a line "Name: Ada; City: London", so that a piece of the table is understood
/// without its first row.
Result<std::vector<ReadDocument>> read_csv(std::string_view bytes, const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(DecodedText decoded, decode_text(bytes, request.encoding));
  const std::string_view text = decoded.text;
  std::size_t at = 0, rows = 0;
  // Excel may name the separator in a line of its own.
  const bool told = text.starts_with("sep=") && text.size() > 5 && text[5] == '\n';
  const char separator = told ? text[4] : find_separator(text);
  if (told) at = 6;
  ReadDocument document;
  TableLines table(/*titled=*/false);
  while (at < text.size()) {
    const std::string line = table.line(next_row(text, at, separator));
    if (line.empty()) continue;
    ++rows;
    document.text += line + "\n";
    if (document.text.size() > request.limits.text_bytes) break;  // finish_documents() refuses it
  }
  // A table of names only is still a text.
  if (rows == 0)
    for (const auto& name : table.names()) document.text += name + "\n";
  document.warnings = std::move(decoded.warnings);
  document.metadata.emplace_back("rows", std::to_string(rows));
  return std::vector<ReadDocument>{std::move(document)};
}

}  // namespace quire
