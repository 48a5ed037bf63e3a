#include "readers/formats/document_builder.h"

#include <algorithm>

#include "base/index.h"

namespace quire {

void DocumentBuilder::mark() {
  TextMark next{document_.text.size(), page_, headings_.path()};
  auto& marks = document_.marks;
  if (!marks.empty() && marks.back().offset == next.offset) {
    marks.back() = std::move(next);
    return;
  }
  if (!marks.empty() && marks.back().page == next.page && marks.back().heading == next.heading)
    return;
  marks.push_back(std::move(next));
}

void DocumentBuilder::separate(std::string_view by) {
  std::string& text = document_.text;
  if (text.empty()) return;
  while (text.ends_with('\n')) text.pop_back();
  text += by;
}

void DocumentBuilder::paragraph(std::string_view text) {
  if (text.find_first_not_of('\n') == std::string_view::npos) return;
  separate("\n\n");
  mark();
  document_.text += text;
}

void DocumentBuilder::line(std::string_view text) {
  if (text.find_first_not_of('\n') == std::string_view::npos) return;
  separate("\n");
  mark();
  document_.text += text;
}

bool DocumentBuilder::row(std::span<const std::string> cells, bool first) {
  while (!cells.empty() && cells.back().empty()) cells = cells.first(cells.size() - 1);
  if (cells.empty()) return false;
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) text += text.empty() ? "|" : " |";
    if (!cells[i].empty()) text += (text.empty() ? "" : " ") + cells[i];
  }
  if (text.front() == '#') text.insert(0, 1, '\\');  // in Markdown it would be a heading
  first ? paragraph(text) : line(text);
  return true;
}

void DocumentBuilder::heading(int level, std::string_view text) {
  const std::string title = squeezed(text);
  if (title.empty()) return;
  document_.markdown = true;
  headings_.open(level, title);
  separate("\n\n");
  mark();
  document_.text += std::string(to_size(std::clamp(level, 1, 6)), '#') + " " + title + "\n";
  // A list or table may follow as a line.
  document_.text += "\n";
}

void DocumentBuilder::page(std::uint32_t number) { page_ = number; }

void DocumentBuilder::append(const ReadDocument& other) {
  if (other.text.find_first_not_of('\n') == std::string::npos) return;
  separate("\n\n");
  const std::uint64_t base = document_.text.size();
  if (other.marks.empty() || other.marks.front().offset > 0) mark();
  const std::string above = headings_.path();
  for (const TextMark& m : other.marks) {
    TextMark moved = m;
    moved.offset += base;
    if (moved.page == 0) moved.page = page_;
    if (!above.empty()) moved.heading = m.heading.empty() ? above : above + " > " + m.heading;
    document_.marks.push_back(std::move(moved));
  }
  document_.text += other.text;
  document_.markdown |= other.markdown;
}

ReadDocument DocumentBuilder::finish() {
  std::string& text = document_.text;
  while (text.ends_with('\n')) text.pop_back();
  if (!text.empty()) text += '\n';
  while (!document_.marks.empty() && document_.marks.back().offset > text.size())
    document_.marks.pop_back();
  return std::exchange(*this, {}).document_;
}

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v') {
      if (!out.empty() && out.back() != ' ') out += ' ';
    } else {
      out += c;
    }
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

}  // namespace quire
