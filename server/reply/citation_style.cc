#include "server/reply/citation_style.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ingest/document/utf8.h"
#include "server/reply/query_record.h"

namespace quire {
namespace {

constexpr std::string_view kField = "prompt.citation";
constexpr std::size_t kMostValueBytes = 256;

Status wrong(std::string message) {
  return Status::invalid(std::string(kField), std::move(message));
}

std::string shortened(const std::string& value) {
  if (value.size() <= kMostValueBytes) return value;
  return value.substr(0, code_point_floor(value, kMostValueBytes - 3)) + "\u2026";
}

}  // namespace

/// Reads a pattern from left to right.
class CitationStyle::Parser {
 public:
  explicit Parser(std::string_view pattern) : rest_(pattern) {}

  Result<std::vector<Part>> parts() {
    while (!rest_.empty()) QUIRE_RETURN_IF_ERROR(step());
    if (only_with_) return wrong("a part that begins with {? has no }");
    if (placeholders_ > kMostPlaceholders)
      return wrong("has more than " + std::to_string(kMostPlaceholders) + " placeholders");
    return std::move(parts_);
  }

 private:
  static constexpr std::array<std::pair<std::string_view, Value>, 7> kNames{{
      {"n", Value::kNumber},
      {"document", Value::kDocument},
      {"id", Value::kId},
      {"title", Value::kTitle},
      {"page", Value::kPage},
      {"heading", Value::kHeading},
      {"quote", Value::kQuote},
  }};

  static Result<Value> value_named(std::string_view name) {
    std::string known;
    for (const auto& [text, value] : kNames) {
      if (text == name) return value;
      known += (known.empty() ? "{" : ", {") + std::string(text) + "}";
    }
    return wrong("holds {" + std::string(name) + "}; use " + known + ", and {{ for a brace");
  }

  Status step() {
    if (rest_.starts_with("{{") || (rest_.starts_with("}}") && !only_with_)) {
      add_text(rest_.substr(0, 1));
      rest_.remove_prefix(2);
      return {};
    }
    if (rest_.front() == '}') {
      if (!only_with_) return wrong("has a } that closes nothing; write }} for a brace");
      only_with_.reset();
      rest_.remove_prefix(1);
      return {};
    }
    if (rest_.front() != '{') {
      const std::size_t end = std::min(rest_.find_first_of("{}"), rest_.size());
      add_text(rest_.substr(0, end));
      rest_.remove_prefix(end);
      return {};
    }
    return rest_.starts_with("{?") ? condition() : placeholder();
  }

  Status placeholder() {
    const std::size_t end = rest_.find('}');
    if (end == std::string_view::npos) return wrong("has a { without a }");
    QUIRE_ASSIGN_OR_RETURN(const Value value, value_named(rest_.substr(1, end - 1)));
    parts_.push_back({value, {}, only_with_});
    ++placeholders_;
    rest_.remove_prefix(end + 1);
    return {};
  }

  Status condition() {
    if (only_with_) return wrong("has a part {? within another");
    const std::size_t end = rest_.find(':');
    if (end == std::string_view::npos) return wrong("has a {? without a colon, as in {?page:...}");
    QUIRE_ASSIGN_OR_RETURN(only_with_, value_named(rest_.substr(2, end - 2)));
    rest_.remove_prefix(end + 1);
    return {};
  }

  void add_text(std::string_view text) {
    parts_.push_back({Value::kText, std::string(text), only_with_});
  }

  std::string_view rest_;
  std::vector<Part> parts_;
  std::optional<Value> only_with_;
  std::size_t placeholders_ = 0;
};

Result<CitationStyle> CitationStyle::parse(std::string_view pattern) {
  if (pattern.size() > kMostBytes)
    return wrong("is longer than " + std::to_string(kMostBytes) + " bytes");
  if (find_invalid_utf8(pattern)) return wrong("is not valid UTF-8");
  CitationStyle out;
  QUIRE_ASSIGN_OR_RETURN(out.parts_, Parser(pattern).parts());
  out.pattern_ = pattern;
  return out;
}

std::string CitationStyle::value_of(Value value, const QueryRecord& record, std::size_t citation) {
  const Citation& c = record.citations[citation];
  switch (value) {
    case Value::kText:
      break;
    case Value::kNumber:
      return std::to_string(citation + 1);
    case Value::kDocument:
      return std::to_string(c.document_index + 1);
    case Value::kId:
      return c.document_id;
    case Value::kTitle: {
      const std::string& title = record.documents[c.document_index].title;
      if (!title.empty()) return title;
      return c.document_id.empty() ? std::to_string(c.document_index + 1) : c.document_id;
    }
    case Value::kPage:
      return c.place.page == 0 ? "" : std::to_string(c.place.page);
    case Value::kHeading:
      return c.place.heading;
    case Value::kQuote:
      return c.quote;
  }
  return {};
}

std::string CitationStyle::mark(const QueryRecord& record, std::size_t citation) const {
  std::string out;
  for (const Part& part : parts_) {
    if (part.only_with && value_of(*part.only_with, record, citation).empty()) continue;
    out += part.value == Value::kText ? part.text
                                      : shortened(value_of(part.value, record, citation));
  }
  return out;
}

std::string CitationStyle::cited_answer(const QueryRecord& record) const {
  const std::string_view answer = record.answer;
  std::string out;
  std::size_t written = 0;
  CodePointSeeker seeker(answer);
  for (std::size_t i = 0; i < record.citations.size(); ++i) {
    // Citations come in the order of the answer, so every mark is behind the last.
    const std::size_t end = seeker.at(record.citations[i].answer_end).value_or(answer.size());
    if (end > written) {
      out += answer.substr(written, end - written);
      written = end;
    }
    out += mark(record, i);
  }
  out += answer.substr(written);
  return out;
}

}  // namespace quire
