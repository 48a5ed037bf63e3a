#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "readers/formats/cell_number.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/office_parts.h"
#include "readers/formats/table_lines.h"
#include "readers/formats/xml_text.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

constexpr std::string_view kWorkbook = "xl/workbook.xml";
constexpr std::size_t kMostColumns = 16'384, kMostCells = 8'000'000;

bool is_wanted(std::string_view name) {
  return (name.starts_with("xl/") && (name.ends_with(".xml") || name.ends_with(".rels")) &&
          !name.starts_with("xl/drawings/") && !name.starts_with("xl/charts/")) ||
         name == "docProps/core.xml";
}

/// Returns the text of a string item or an inline string; how it is pronounced is left out.
std::string text_of(const pugi::xml_node& item) {
  std::string out;
  for (const auto& child : item.children()) {
    const auto name = local_name(child);
    if (name == "t")
      out += child.text().get();
    else if (name == "r")
      out += text_of(child);
  }
  return squeezed(out);
}

/// What the cells of all sheets share.
struct Workbook {
  std::vector<std::string> strings;
  std::vector<std::string> formats;  ///< format code of each style of cells
  bool since_1904 = false;
};

std::vector<std::string> read_formats(const pugi::xml_node& styles) {
  std::map<int, std::string> codes;
  for (const auto& format : local_child(styles, "numFmts").children())
    codes[local_number(format, "numFmtId", -1)] = local_attribute(format, "formatCode");
  std::vector<std::string> out;
  for (const auto& style : local_child(styles, "cellXfs").children()) {
    const int id = local_number(style, "numFmtId", 0);
    const auto own = codes.find(id);
    out.emplace_back(own != codes.end() ? std::string_view(own->second) : built_in_format(id));
  }
  return out;
}

/// Returns the column of a reference like "BC12", from 0; kMostColumns: it has none.
std::size_t column_of(std::string_view reference) {
  std::size_t column = 0;
  for (const char c : reference) {
    if (c < 'A' || c > 'Z') break;
    column = column * 26 + to_size(c - 'A' + 1);
    if (column > kMostColumns) return kMostColumns;
  }
  return column == 0 ? kMostColumns : column - 1;
}

std::string shown(const pugi::xml_node& cell, const Workbook& book) {
  const std::string_view type = local_attribute(cell, "t");
  if (type == "inlineStr") return text_of(local_child(cell, "is"));
  const std::string value = local_child(cell, "v").text().get();
  if (value.empty()) return {};
  if (type == "s") {
    const auto index = static_cast<std::size_t>(std::strtoull(value.c_str(), nullptr, 10));
    return index < book.strings.size() ? book.strings[index] : std::string();
  }
  if (type == "b") return value == "0" ? "FALSE" : "TRUE";
  if (!type.empty() && type != "n") return squeezed(value);  // of a formula, a date, an error
  const auto style = static_cast<std::size_t>(local_number(cell, "s", 0));
  const std::string_view format = style < book.formats.size()
                                      ? std::string_view(book.formats[style])
                                      : std::string_view();
  return shown_number(std::strtod(value.c_str(), nullptr), format, book.since_1904);
}

/// Returns the rows that have text, without the columns on the left that are empty in all of them.
/// Errors: kResourceExhausted (too many cells, counting empty ones before others).
Result<std::vector<TableLines::Row>> rows_of(const pugi::xml_node& sheet, const Workbook& book) {
  std::vector<TableLines::Row> rows;
  std::size_t left = kMostColumns, cells = 0;
  for (const auto& node : local_child(sheet, "sheetData").children()) {
    TableLines::Row row;
    std::size_t next = 0;
    for (const auto& cell : node.children()) {
      if (local_name(cell) != "c") continue;
      std::size_t column = column_of(local_attribute(cell, "r"));
      if (column == kMostColumns) column = next;
      next = column + 1;
      std::string text = shown(cell, book);
      if (text.empty() || column >= kMostColumns) continue;
      if (row.size() <= column) row.resize(column + 1);
      row[column] = std::move(text);
      left = std::min(left, column);
    }
    cells += row.size();
    if (cells > kMostCells)
      return Status::exhausted("has a sheet of more than " + std::to_string(kMostCells) +
                               " cells; save it as CSV");
    if (!row.empty()) rows.push_back(std::move(row));
  }
  for (TableLines::Row& row : rows)
    row.erase(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(std::min(left, row.size())));
  return rows;
}

}  // namespace

/// Each sheet becomes a section, and each of its rows a line that names its columns.
Result<std::vector<ReadDocument>> read_xlsx(std::string_view bytes, const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const auto entries, unzip(bytes, &is_wanted));
  pugi::xml_document book, part, core;
  const std::string root(kWorkbook);
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, root, book));
  const auto relations = office_relations(entries, root);
  const auto workbook = book.document_element();
  Workbook shared;
  const std::string_view since = local_attribute(local_child(workbook, "workbookPr"), "date1904");
  shared.since_1904 = since == "1" || since == "true";
  for (const auto& [id, relation] : relations) {
    if (relation.type == "styles" && parse_entry(entries, relation.target, part).ok())
      shared.formats = read_formats(part.document_element());
    if (relation.type != "sharedStrings") continue;
    QUIRE_RETURN_IF_ERROR(parse_entry(entries, relation.target, part));
    for (const auto& item : part.document_element().children())
      if (local_name(item) == "si") shared.strings.push_back(text_of(item));
  }
  DocumentBuilder builder;
  std::vector<std::string> warnings;
  std::size_t sheets = 0;
  for (const auto& sheet : local_child(workbook, "sheets").children()) {
    const std::string name(local_attribute(sheet, "name"));
    const auto found = relations.find(relation_id(sheet));
    if (found == relations.end() || found->second.type != "worksheet") continue;  // a chart
    const std::string_view state = local_attribute(sheet, "state");
    if (state == "hidden" || state == "veryHidden") {
      warnings.push_back("the hidden sheet '" + name + "' is not read");
      continue;
    }
    QUIRE_RETURN_IF_ERROR(parse_entry(entries, found->second.target, part));
    QUIRE_ASSIGN_OR_RETURN(const auto rows, rows_of(part.document_element(), shared));
    if (rows.empty()) continue;
    ++sheets;
    add_sheet(name, rows, builder);
    if (builder.size() > request.limits.text_bytes) break;  // finish_documents() refuses it
  }
  ReadDocument out = builder.finish();
  out.warnings = std::move(warnings);
  out.metadata.emplace_back("sheets", std::to_string(sheets));
  if (parse_entry(entries, "docProps/core.xml", core).ok()) {
    out.title = text_of_first(core, "title");
    out.metadata.emplace_back("author", text_of_first(core, "creator"));
  }
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
