// Citation styles come with requests: any pattern is read or refused, and what it writes stays
// bounded and contains the answer.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/reply/citation_style.h"
#include "server/reply/query_record.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto style = CitationStyle::parse({reinterpret_cast<const char*>(data), size});
  if (!style.ok()) {
    if (style.status().field() != "prompt.citation") std::abort();
    return 0;
  }
  QueryRecord record;
  record.answer = "It is so. And so on.";
  Citation first, second;
  first.answer_end = 9;
  first.document_id = "a";
  first.place = {3, 4, "Heading"};
  first.quote = std::string(1000, 'q');
  second.answer_end = 20;
  second.document_index = 1;
  record.citations = {first, second};
  record.documents = {{.id = "a", .title = "Title"}, {}};
  const std::string text = style->cited_answer(record);
  constexpr std::size_t kMostMark = CitationStyle::kMostBytes +
                                    256 * CitationStyle::kMostPlaceholders;
  if (!text.starts_with("It is so.") || text.find(" And so on.") == std::string::npos ||
      text.size() > record.answer.size() + record.citations.size() * kMostMark)
    std::abort();
  if (style->empty() && text != record.answer) std::abort();
  return 0;
}
