#include <algorithm>
#include <map>
#include <string_view>
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
  return name == "word/document.xml" || name == "word/styles.xml" || name == "word/footnotes.xml" ||
         name == "word/endnotes.xml" || name == "docProps/core.xml";
}

/// Levels of headings by the id of a style. Ids are translated in some versions of Word; the name
/// "heading 1" and the outline level are not.
std::map<std::string, int, std::less<>> heading_styles(const pugi::xml_document& styles) {
  std::map<std::string, int, std::less<>> out;
  const auto root = styles.document_element();
  for (const auto& style : root.children()) {
    if (local_name(style) != "style") continue;
    const std::string id(local_attribute(style, "styleId"));
    const std::string_view name = local_attribute(local_child(style, "name"), "val");
    const auto outline = local_child(local_child(style, "pPr"), "outlineLvl");
    int level = 0;
    if (name.starts_with("heading ") || name.starts_with("Heading "))
      level = name.size() == 9 ? name[8] - '0' : 0;
    else if (name == "Title" || name == "title")
      level = 1;
    else if (outline)
      level = local_number(outline, "val", 9) + 1;
    if (level >= 1 && level <= 9) out[id] = level;
  }
  return out;
}

bool is_page_break(const pugi::xml_node& node) {
  return local_name(node) == "br" && local_attribute(node, "type") == "page";
}

bool is_rendered_break(const pugi::xml_node& node) {
  return local_name(node) == "lastRenderedPageBreak";
}

class DocxReader {
 public:
  /// `paged` says whether there are breaks of pages, without which the first page is unknown, too.
  DocxReader(std::map<std::string, int, std::less<>> headings, bool paged)
      : headings_(std::move(headings)) {
    if (paged) builder_.page(page_);
  }

  void body(const pugi::xml_node& node) {
    for (const auto& child : node.children()) {
      const auto name = local_name(child);
      if (name == "p")
        paragraph(child);
      else if (name == "tbl")
        table(child);
      else if (name == "sdt" || name == "sdtContent" || name == "customXml" || name == "ins" ||
               name == "footnote" || name == "endnote" || name == "smartTag")
        body(child);
    }
  }

  /// Its title is the first heading of the first level.
  ReadDocument finish() {
    ReadDocument out = builder_.finish();
    out.title = first_heading_;
    return out;
  }

 private:
  /// Calls `take` for each child of this name, also for those in content controls and tracked
  /// changes.
  template <class Take>
  static void each(const pugi::xml_node& node, std::string_view wanted, const Take& take) {
    for (const auto& child : node.children()) {
      const auto name = local_name(child);
      if (name == wanted)
        take(child);
      else if (name == "sdt" || name == "sdtContent" || name == "customXml" || name == "ins")
        each(child, wanted, take);
    }
  }

  void paragraph(const pugi::xml_node& node) {
    std::string text;
    runs(node, text);
    const auto properties = local_child(node, "pPr");
    const auto style = local_attribute(local_child(properties, "pStyle"), "val");
    const auto found = headings_.find(style);
    int level = found == headings_.end() ? 0 : found->second;
    if (const auto outline = local_child(properties, "outlineLvl"))
      level = local_number(outline, "val", 9) + 1;
    const std::string trimmed = text.substr(std::min(text.find_first_not_of(" \t\n"), text.size()));
    if (trimmed.empty()) return;
    const bool item = static_cast<bool>(local_child(properties, "numPr"));
    if (level == 1 && first_heading_.empty()) first_heading_ = trimmed;
    if (level >= 1 && level <= 9)
      builder_.heading(level, trimmed);
    else if (item && last_item_)
      builder_.line("- " + trimmed);
    else
      builder_.paragraph(item ? "- " + trimmed : trimmed);
    last_item_ = item;
  }

  /// Text of a paragraph: runs, links, insertions and the paragraphs of text boxes. What was moved
  /// away still holds its text.
  void runs(const pugi::xml_node& node, std::string& out) {
    for (const auto& child : node.children()) {
      const auto name = local_name(child);
      if (name == "t") {
        const std::string_view text = child.text().get();
        if (!text.empty()) broken_ = false;
        out += text;
      } else if (name == "tab") {
        out += '\t';
      } else if (is_page_break(child)) {
        next_page();
        broken_ = true;
      } else if (name == "br" || name == "cr") {
        out += '\n';
      } else if (is_rendered_break(child)) {
        // Word also writes one where the author has ended the page.
        if (!std::exchange(broken_, false)) next_page();
      } else if (name == "p") {
        if (!out.empty() && out.back() != '\n') out += '\n';
        runs(child, out);
        out += '\n';
      } else if (name == "noBreakHyphen") {
        out += "\xe2\x80\x91";
      } else if (name != "pPr" && name != "rPr" && name != "Fallback" && name != "del" &&
                 name != "moveFrom" && name != "instrText") {
        if (name == "drawing" || name == "pict" || name == "object") broken_ = false;
        runs(child, out);
      }
    }
  }

  void next_page() { builder_.page(++page_); }

  void table(const pugi::xml_node& node) {
    constexpr int kMostSpanned = 64;
    bool first = true;
    each(node, "tr", [&](const pugi::xml_node& row) {
      std::vector<std::string> cells;
      const auto skip = [&](const pugi::xml_node& columns, int fewer) {
        const int n = std::clamp(local_number(columns, "val", 0) - fewer, 0, kMostSpanned);
        cells.resize(cells.size() + to_size(n));
      };
      skip(local_child(local_child(row, "trPr"), "gridBefore"), 0);
      each(row, "tc", [&](const pugi::xml_node& cell) {
        std::string text;
        cell_text(cell, text);
        cells.push_back(squeezed(text));
        skip(local_child(local_child(cell, "tcPr"), "gridSpan"), 1);
      });
      if (builder_.row(cells, first)) first = false;
    });
    last_item_ = false;
  }

  void cell_text(const pugi::xml_node& cell, std::string& out) {
    for (const auto& child : cell.children()) {
      const auto name = local_name(child);
      if (name == "p") {
        runs(child, out);
        out += ' ';
      } else if (name != "tcPr") {
        cell_text(child, out);
      }
    }
  }

  const std::map<std::string, int, std::less<>> headings_;
  DocumentBuilder builder_;
  std::string first_heading_;
  std::uint32_t page_ = 1;
  bool broken_ = false;  // the author has ended a page, and nothing has followed yet
  bool last_item_ = false;
};

}  // namespace

Result<std::vector<ReadDocument>> read_docx(std::string_view bytes, const ReaderRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const auto entries, unzip(bytes, &is_wanted));
  pugi::xml_document document, styles, core, notes;
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, "word/document.xml", document));
  std::map<std::string, int, std::less<>> headings;
  if (parse_entry(entries, "word/styles.xml", styles).ok()) headings = heading_styles(styles);
  const auto body = local_child(document.document_element(), "body");
  const bool paged = static_cast<bool>(body.find_node(
      [](const pugi::xml_node& node) { return is_page_break(node) || is_rendered_break(node); }));
  DocxReader reader(std::move(headings), paged);
  reader.body(body);
  for (const auto* entry : {"word/footnotes.xml", "word/endnotes.xml"})
    if (parse_entry(entries, entry, notes).ok()) reader.body(notes.document_element());
  ReadDocument out = reader.finish();
  if (parse_entry(entries, "docProps/core.xml", core).ok()) {
    if (auto title = text_of_first(core, "title"); !title.empty()) out.title = std::move(title);
    out.metadata.emplace_back("author", text_of_first(core, "creator"));
  }
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
