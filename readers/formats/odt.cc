#include <algorithm>
#include <charconv>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/xml_text.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

bool is_wanted(std::string_view name) {
  return name == "content.xml" || name == "meta.xml" || name == "META-INF/manifest.xml";
}

int number(std::string_view text, int fallback) {
  int out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() ? out : fallback;
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
    const int level = std::clamp(number(local_attribute(node, "outline-level"), 1), 1, 9);
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
        out.append(to_size(std::clamp(number(local_attribute(child, "c"), 1), 1, 64)), ' ');
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

  void rows(const pugi::xml_node& node, bool& first) {
    for (const auto& row : node.children()) {
      const auto name = local_name(row);
      if (name == "table-header-rows" || name == "table-rows" || name == "table-row-group")
        rows(row, first);
      if (name != "table-row") continue;
      std::vector<std::string> cells;
      for (const auto& cell : row.children()) {
        const auto kind = local_name(cell);
        // What a wide or high cell covers has its place, too.
        if (kind != "table-cell" && kind != "covered-table-cell") continue;
        std::string text;
        inline_text(cell, text);
        const int times = std::clamp(number(local_attribute(cell, "number-columns-repeated"), 1), 1,
                                     kMostRepeated);
        cells.insert(cells.end(), to_size(times), squeezed(text));
      }
      if (builder_.row(cells, first)) first = false;
    }
  }

  void table(const pugi::xml_node& node) {
    bool first = true;
    rows(node, first);
    last_item_ = false;
  }

  static constexpr int kMostRepeated = 64;

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
  const auto text = content.find_node(
      [](const pugi::xml_node& node) { return std::string_view(node.name()) == "office:text"; });
  if (!text)
    return Status::unimplemented("is a table or drawing of OpenDocument; save it as CSV or PDF");
  const bool paged = static_cast<bool>(text.find_node(
      [](const pugi::xml_node& node) { return local_name(node) == "soft-page-break"; }));
  OdtReader reader(paged);
  reader.body(text, false);
  ReadDocument out = reader.finish();
  if (parse_entry(entries, "meta.xml", meta).ok()) {
    if (auto title = text_of_first(meta, "title"); !title.empty()) out.title = std::move(title);
    out.metadata.emplace_back("author", text_of_first(meta, "creator"));
  }
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
