/// Collects the text of one document: paragraphs, headings and pages.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "readers/read_document.h"

namespace quire {

/// Threads: one object, one thread.
class DocumentBuilder {
 public:
  /// Adds a paragraph of one or more lines. An empty one adds nothing.
  void paragraph(std::string_view text);
  /// Adds a line that follows the one before without an empty line between, as in lists and tables.
  void line(std::string_view text);
  /// Adds a row of a table as a line; empty cells at its end are left out. The first row of a table
  /// is a paragraph of its own. Returns whether the row has text.
  bool row(std::span<const std::string> cells, bool first);
  /// Adds a heading of level 1 to 9 as a line that begins with as many '#', at most 6.
  void heading(int level, std::string_view text);
  /// Begins a page, from 1. What follows is on it.
  void page(std::uint32_t number);
  /// Adds a document's text and marks below the headings that are open now.
  void append(const ReadDocument& other);

  std::size_t size() const { return document_.text.size(); }
  /// Ends the text. The builder is then empty.
  ReadDocument finish();

 private:
  void mark();
  void separate(std::string_view by);

  ReadDocument document_;
  HeadingPath headings_;
  std::uint32_t page_ = 0;
};

/// Returns the text with each run of white space as one space, and none at its ends.
std::string squeezed(std::string_view text);

}  // namespace quire
