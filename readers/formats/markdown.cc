#include <cmark-gfm.h>

#include <memory>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/text_encoding.h"

namespace quire {
namespace {

using Node = std::unique_ptr<cmark_node, decltype(&cmark_node_free)>;

/// Takes "---" front matter off the text and keeps its plain members. The rest of YAML is left out.
void take_front_matter(ReadDocument& document) {
  std::string& text = document.text;
  if (!text.starts_with("---\n")) return;
  std::size_t end = 3, at = 4;
  std::vector<std::pair<std::string, std::string>> members;
  for (;;) {
    end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string line = text.substr(at, end - at);
    if (line == "---" || line == "...") break;
    if (end >= text.size()) return;  // no end: it was a rule, not front matter
    at = end + 1;
    const auto colon = line.find(": ");
    if (colon == std::string::npos || colon == 0 || line[0] == ' ' || line[0] == '#') continue;
    std::string value = squeezed(line.substr(colon + 2));
    if (value.size() >= 2 && (value[0] == '"' || value[0] == '\'') && value.back() == value[0])
      value = value.substr(1, value.size() - 2);
    if (value.empty() || value[0] == '[' || value[0] == '{' || value[0] == '|') continue;
    members.emplace_back(line.substr(0, colon), std::move(value));
  }
  for (auto& [name, value] : members) {
    if (name == "title")
      document.title = std::move(value);
    else if (name.size() <= 64)
      document.metadata.emplace_back(std::move(name), std::move(value));
  }
  text.erase(0, std::min(end + 1, text.size()));
  text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
}

/// The text below a node, without its markup.
std::string plain(cmark_node* node) {
  std::string out;
  const std::unique_ptr<cmark_iter, decltype(&cmark_iter_free)> walk(cmark_iter_new(node),
                                                                     &cmark_iter_free);
  while (cmark_iter_next(walk.get()) != CMARK_EVENT_DONE) {
    cmark_node* at = cmark_iter_get_node(walk.get());
    const auto type = cmark_node_get_type(at);
    if (type == CMARK_NODE_SOFTBREAK || type == CMARK_NODE_LINEBREAK) out += ' ';
    if (type != CMARK_NODE_TEXT && type != CMARK_NODE_CODE) continue;
    if (const char* literal = cmark_node_get_literal(at)) out += literal;
  }
  return squeezed(out);
}

std::vector<std::size_t> line_starts(std::string_view text) {
  std::vector<std::size_t> out{0};
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text[i] == '\n') out.push_back(i + 1);
  return out;
}

}  // namespace

Result<std::vector<ReadDocument>> read_markdown(std::string_view bytes,
                                                const ReaderRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(DecodedText decoded, decode_text(bytes, request.encoding));
  ReadDocument document;
  document.text = std::move(decoded.text);
  document.warnings = std::move(decoded.warnings);
  document.markdown = true;
  take_front_matter(document);
  const std::string& text = document.text;
  const Node root(cmark_parse_document(text.data(), text.size(), CMARK_OPT_DEFAULT),
                  &cmark_node_free);
  if (!root) return Status::exhausted("the text is too large for the Markdown reader");
  const auto starts = line_starts(text);
  HeadingPath path;
  // Headings in lists and quotations are no parts of the document.
  for (cmark_node* node = cmark_node_first_child(root.get()); node; node = cmark_node_next(node)) {
    if (cmark_node_get_type(node) != CMARK_NODE_HEADING) continue;
    const int level = cmark_node_get_heading_level(node), line = cmark_node_get_start_line(node);
    if (line < 1 || to_size(line) > starts.size()) continue;
    std::string title = plain(node);
    if (document.title.empty() && level == 1) document.title = title;
    path.open(level, std::move(title));
    document.marks.push_back({starts[to_size(line) - 1], 0, path.path()});
  }
  return std::vector<ReadDocument>{std::move(document)};
}

}  // namespace quire
