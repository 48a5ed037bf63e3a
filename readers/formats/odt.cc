#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/table_lines.h"
#include "readers/formats/xml_text.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

bool is_wanted(std::string_view name) {
  return name == "content.xml" || name == "meta.xml" || name == "META-INF/manifest.xml";
}

class OdtReader {
 public:
  /// `paged` says whether there are breaks of pages, without which the first page is unknown, too.
  explicit OdtReader(bool paged) {
    if (paged) builder_.page(page_);
  }
  void body(const pugi::xml_node& node, bool in_list) {
    for (const auto& child : node.children()) {
      const auto name = local_name(child);
      if (name == "p" || name == "h") {
        paragraph(child, name == "h", in_list);
      } else if (name == "table") {
        table(child);
      } else if (name == "soft-page-break") {
        builder_.page(++page_);
      } else if (name != "tracked-changes" && name != "annotation" && name != "forms" &&
                 name != "sequence-decls") {
        body(child, in_list || name == "list");
      }
    }
  }
  /// Adds each sheet of a workbook as a section whose rows name their columns.
  void workbook(const pugi::xml_node& sheets) {
    for (const auto& sheet : sheets.children()) {
      if (local_name(sheet) != "table") continue;
      std::vector<TableLines::Row> found;
      collect_rows(sheet, found);
      if (!found.empty()) add_sheet(local_attribute(sheet, "name"), found, builder_);
    }
  }
  /// Adds each slide as a page and a section.
  void slides(const pugi::xml_node& show) {
    page_ = 0;
    for (const auto& slide : show.children()) {
      if (local_name(slide) != "page") continue;
      builder_.page(++page_);
      std::string title;
      for (const auto& frame : slide.children())
        if (title.empty() && is_title(frame)) inline_text(frame, title);
      title = squeezed(title);
      if (first_heading_.empty()) first_heading_ = title;
      builder_.heading(1, title.empty() ? "Slide " + std::to_string(page_) : title);
      for (const auto& frame : slide.children())
        if (!is_title(frame) && local_name(frame) != "notes") body(frame, false);
      last_item_ = false;
      if (const auto notes = local_child(slide, "notes")) {
        std::string said;
        inline_text(notes, said);
        if (said = squeezed(said); !said.empty()) builder_.paragraph("Notes: " + said);
      }
    }
  }
  /// Its title is the first heading of the first level.
  ReadDocument finish() {
    ReadDocument out = builder_.finish();
    out.title = first_heading_;
    return out;
  }

 private:
  void paragraph(const pugi::xml_node& node, bool heading, bool in_list) {
    std::string text;
    inline_text(node, text);
    text.erase(0, std::min(text.find_first_not_of(" \t\n"), text.size()));
    if (text.empty()) return;
    const int level = std::clamp(local_number(node, "outline-level", 1), 1, 9);
    if (heading && level == 1 && first_heading_.empty()) first_heading_ = text;
    if (heading)
      builder_.heading(level, text);
    else if (in_list && last_item_)
      builder_.line("- " + text);
    else
      builder_.paragraph(in_list ? "- " + text : text);
    last_item_ = in_list && !heading;
  }

  void inline_text(const pugi::xml_node& node, std::string& out) {
    for (const auto& child : node.children()) {
      const auto name = local_name(child);
      if (child.type() == pugi::node_pcdata || child.type() == pugi::node_cdata) {
        // Runs of white space count as one; <text:s> holds the others.
        for (const char c : std::string_view(child.value())) {
          const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
          if (!space)
            out += c;
          else if (!out.empty() && out.back() != ' ')
            out += ' ';
        }
      } else if (name == "s") {
        out.append(to_size(std::clamp(local_number(child, "c", 1), 1, 64)), ' ');
      } else if (name == "tab") {
        out += '\t';
      } else if (name == "line-break") {
        out += '\n';
      } else if (name == "soft-page-break") {
        builder_.page(++page_);
      } else if (name == "p" || name == "h") {  // of a text box, a note or a cell
        if (!out.empty() && out.back() != '\n') out += '\n';
        inline_text(child, out);
        out += '\n';
      } else if (name == "note-body") {
        std::string note;
        inline_text(child, note);
        out += " (" + squeezed(note) + ")";
      } else if (name != "annotation" && name != "note-citation" && name != "tracked-changes") {
        inline_text(child, out);
      }
    }
  }

  static bool is_title(const pugi::xml_node& frame) {
    return local_name(frame) == "frame" && local_attribute(frame, "class") == "title";
  }

  /// Returns the rows that have text, without empty cells at their ends.
  void collect_rows(const pugi::xml_node& node, std::vector<TableLines::Row>& out) {
    for (const auto& row : node.children()) {
      const auto name = local_name(row);
      if (name == "table-header-rows" || name == "table-rows" || name == "table-row-group")
        collect_rows(row, out);
      if (name != "table-row") continue;
      TableLines::Row cells;
      for (const auto& cell : row.children()) {
        const auto kind = local_name(cell);
        // What a wide or high cell covers has its place, too.
        if (kind != "table-cell" && kind != "covered-table-cell") continue;
        std::string text;
        inline_text(cell, text);
        text = squeezed(text);
        const int times = std::clamp(local_number(cell, "number-columns-repeated", 1), 1,
                                     text.empty() ? kMostEmpty : kMostRepeated);
        cells.insert(cells.end(), to_size(times), text);
      }
      while (!cells.empty() && cells.back().empty()) cells.pop_back();
      if (!cells.empty()) out.push_back(std::move(cells));
    }
  }

  void table(const pugi::xml_node& node) {
    std::vector<TableLines::Row> found;
    collect_rows(node, found);
    bool first = true;
    for (const TableLines::Row& row : found)
      if (builder_.row(row, first)) first = false;
    last_item_ = false;
  }

  static constexpr int kMostRepeated = 64, kMostEmpty = 1024;

  DocumentBuilder builder_;
  std::string first_heading_;
  std::uint32_t page_ = 1;
  bool last_item_ = false;
};

}  // namespace

Result<std::vector<ReadDocument>> read_odt(std::string_view bytes, const ReaderRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const auto entries, unzip(bytes, &is_wanted));
  pugi::xml_document content, meta;
  if (const auto manifest = entries.find("META-INF/manifest.xml");
      manifest != entries.end() && manifest->second.find("encryption-data") != std::string::npos)
    return Status::precondition("is protected by a password; save it without one");
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, "content.xml", content));
  const auto part = [&content](std::string_view name) {
    return content.find_node(
        [name](const pugi::xml_node& node) { return std::string_view(node.name()) == name; });
  };
  const auto text = part("office:text");
  const bool paged = static_cast<bool>(text.find_node(
      [](const pugi::xml_node& node) { return local_name(node) == "soft-page-break"; }));
  OdtReader reader(paged);
  if (text)
    reader.body(text, false);
  else if (const auto sheets = part("office:spreadsheet"))
    reader.workbook(sheets);
  else if (const auto show = part("office:presentation"))
    reader.slides(show);
  else
    return Status::unimplemented("is a drawing of OpenDocument; save it as PDF");
  ReadDocument out = reader.finish();
  if (parse_entry(entries, "meta.xml", meta).ok()) {
    if (auto title = text_of_first(meta, "title"); !title.empty()) out.title = std::move(title);
    out.metadata.emplace_back("author", text_of_first(meta, "creator"));
  }
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
