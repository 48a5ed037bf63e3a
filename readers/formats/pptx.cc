#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/office_parts.h"
#include "readers/formats/xml_text.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

constexpr std::string_view kPresentation = "ppt/presentation.xml";

bool is_wanted(std::string_view name) {
  const auto below = [name](std::string_view folder) {
    return name.starts_with(folder) && (name.ends_with(".xml") || name.ends_with(".rels"));
  };
  return name == kPresentation || name == "ppt/_rels/presentation.xml.rels" ||
         below("ppt/slides/") || below("ppt/notesSlides/") || name == "docProps/core.xml";
}

/// Returns the kind of placeholder that a shape is; "other": it is none.
std::string_view placeholder_of(const pugi::xml_node& shape) {
  const auto holder = local_child(local_child(local_child(shape, "nvSpPr"), "nvPr"), "ph");
  if (!holder) return "other";
  const std::string_view type = local_attribute(holder, "type");
  return type.empty() ? "body" : type;
}

bool is_title(std::string_view placeholder) {
  return placeholder == "title" || placeholder == "ctrTitle";
}

/// What every slide repeats: its number, the date and the footer.
bool is_frame(std::string_view placeholder) {
  return placeholder == "sldNum" || placeholder == "dt" || placeholder == "ftr" ||
         placeholder == "hdr";
}

/// Adds the text of a paragraph: runs, fields and line breaks.
void add_runs(const pugi::xml_node& node, std::string& out) {
  for (const auto& child : node.children()) {
    const auto name = local_name(child);
    if (name == "t")
      out += child.text().get();
    else if (name == "br" || name == "tab")
      out += ' ';
    else if (name != "pPr" && name != "rPr" && name != "endParaRPr" && name != "Fallback")
      add_runs(child, out);
  }
}

std::vector<std::string> paragraphs_of(const pugi::xml_node& body) {
  std::vector<std::string> out;
  for (const auto& child : body.children()) {
    if (local_name(child) != "p") continue;
    std::string text;
    add_runs(child, text);
    if (text = squeezed(text); !text.empty()) out.push_back(std::move(text));
  }
  return out;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : " ") + part;
  return out;
}

/// Calls `visit` for each shape, table or picture below, also for those in groups.
template <class Visit>
void each_shape(const pugi::xml_node& tree, const Visit& visit) {
  for (const auto& child : tree.children()) {
    const auto name = local_name(child);
    if (name == "grpSp" || name == "AlternateContent" || name == "Choice")
      each_shape(child, visit);
    else
      visit(child, name);
  }
}

pugi::xml_node shapes_of(const pugi::xml_document& slide) {
  return local_child(local_child(slide.document_element(), "cSld"), "spTree");
}

class SlideReader {
 public:
  explicit SlideReader(DocumentBuilder& builder) : builder_(builder) {}

  /// Returns the title; empty: the slide has none.
  std::string slide(const pugi::xml_document& slide, std::uint32_t number) {
    builder_.page(number);
    std::string title;
    each_shape(shapes_of(slide), [&](const pugi::xml_node& shape, std::string_view name) {
      if (name == "sp" && title.empty() && is_title(placeholder_of(shape)))
        title = joined(paragraphs_of(local_child(shape, "txBody")));
    });
    builder_.heading(1, title.empty() ? "Slide " + std::to_string(number) : title);
    each_shape(shapes_of(slide), [&](const pugi::xml_node& shape, std::string_view name) {
      if (name == "graphicFrame") return table(shape);
      if (name != "sp") return;
      const std::string_view kind = placeholder_of(shape);
      if (is_title(kind) || is_frame(kind)) return;
      text(paragraphs_of(local_child(shape, "txBody")), kind == "body" || kind == "obj");
    });
    return title;
  }

  /// Adds what the speaker says.
  void notes(const pugi::xml_document& notes) {
    each_shape(shapes_of(notes), [&](const pugi::xml_node& shape, std::string_view name) {
      if (name != "sp" || placeholder_of(shape) != "body") return;
      const auto said = paragraphs_of(local_child(shape, "txBody"));
      for (std::size_t i = 0; i < said.size(); ++i)
        builder_.paragraph((i == 0 ? "Notes: " : "") + said[i]);
    });
  }

 private:
  void text(const std::vector<std::string>& paragraphs, bool list) {
    const std::string item = list && paragraphs.size() > 1 ? "- " : "";
    for (std::size_t i = 0; i < paragraphs.size(); ++i)
      i == 0 ? builder_.paragraph(item + paragraphs[i]) : builder_.line(item + paragraphs[i]);
  }

  void table(const pugi::xml_node& frame) {
    const auto rows = local_child(local_child(local_child(frame, "graphic"), "graphicData"), "tbl");
    bool first = true;
    for (const auto& row : rows.children()) {
      if (local_name(row) != "tr") continue;
      std::vector<std::string> cells;
      for (const auto& cell : row.children())
        if (local_name(cell) == "tc")
          cells.push_back(joined(paragraphs_of(local_child(cell, "txBody"))));
      if (builder_.row(cells, first)) first = false;
    }
  }

  DocumentBuilder& builder_;
};

}  // namespace

/// Each slide is a page and a section, with what the speaker says at its end.
Result<std::vector<ReadDocument>> read_pptx(std::string_view bytes, const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const auto entries, unzip(bytes, &is_wanted));
  pugi::xml_document show, slide, notes, core;
  const std::string root(kPresentation);
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, root, show));
  const auto relations = office_relations(entries, root);
  DocumentBuilder builder;
  SlideReader reader(builder);
  std::vector<std::string> warnings;
  std::string title;
  std::uint32_t number = 0;
  for (const auto& item : local_child(show.document_element(), "sldIdLst").children()) {
    ++number;
    const auto found = relations.find(relation_id(item));
    if (found == relations.end()) continue;
    const std::string& part = found->second.target;
    QUIRE_RETURN_IF_ERROR(parse_entry(entries, part, slide));
    if (const auto shown = local_attribute(slide.document_element(), "show");
        shown == "0" || shown == "false") {
      warnings.push_back("the hidden slide " + std::to_string(number) + " is not read");
      continue;
    }
    const std::string own = reader.slide(slide, number);
    if (title.empty()) title = own;
    for (const auto& [id, relation] : office_relations(entries, part))
      if (relation.type == "notesSlide" && parse_entry(entries, relation.target, notes).ok())
        reader.notes(notes);
    if (builder.size() > request.limits.text_bytes) break;  // finish_documents() refuses it
  }
  ReadDocument out = builder.finish();
  out.warnings = std::move(warnings);
  out.title = title;
  out.metadata.emplace_back("slides", std::to_string(number));
  if (parse_entry(entries, "docProps/core.xml", core).ok()) {
    if (auto named = text_of_first(core, "title"); !named.empty()) out.title = std::move(named);
    out.metadata.emplace_back("author", text_of_first(core, "creator"));
  }
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
