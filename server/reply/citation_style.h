/// Writes the citations of an answer into its text.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct Citation;
struct QueryRecord;

/// CitationStyle is how citations stand in the text of an answer: a mark for each citation, behind
/// the sentence that it supports. It changes no token of the prompt. Immutable; any thread.
///
/// A pattern is text with placeholders: {n} the citation's number, {document} the number of the
/// document in the prompt, both from 1; {id}; {title}, else the id, else the document's number;
/// {page}; {heading}; {quote}. {?page:, p. {page}} stands only where the page is known, and
/// likewise for the others. {{ and }} are braces. A value longer than 256 bytes ends with an
/// ellipsis.
class CitationStyle {
 public:
  static constexpr std::size_t kMostBytes = 1024, kMostPlaceholders = 8;

  /// Writes no marks.
  CitationStyle() = default;
  /// An empty pattern writes no marks. Errors: kInvalidArgument (field "prompt.citation") for a
  /// pattern that is too long, no UTF-8, or has an unknown, unclosed or nested part.
  static Result<CitationStyle> parse(std::string_view pattern);

  bool empty() const { return pattern_.empty(); }
  const std::string& pattern() const { return pattern_; }
  /// Returns the answer with its marks, in the order of the record's citations.
  std::string cited_answer(const QueryRecord& record) const;

 private:
  enum class Value : std::uint8_t {
    kText,
    kNumber,
    kDocument,
    kId,
    kTitle,
    kPage,
    kHeading,
    kQuote
  };
  struct Part {
    Value value = Value::kText;
    std::string text;                ///< of kText
    std::optional<Value> only_with;  ///< left out where this value is empty
  };
  class Parser;

  static std::string value_of(Value value, const QueryRecord& record, std::size_t citation);
  std::string mark(const QueryRecord& record, std::size_t citation) const;

  std::string pattern_;
  std::vector<Part> parts_;
};

/// The styles of a service: its own, and those of namespaces that have another.
struct CitationStyles {
  CitationStyle service;
  std::map<std::string, CitationStyle, std::less<>> namespaces;

  const CitationStyle& of(std::string_view ns) const {
    const auto at = namespaces.find(ns);
    return at == namespaces.end() ? service : at->second;
  }
};

}  // namespace quire
