#include "server/reply/citation_reply.h"

namespace quire {
namespace json = boost::json;

const Reply<NumberedCitation>& citation_reply() {
  using C = NumberedCitation;
  static const Reply<C> reply(
      "Citation",
      "Positions count Unicode code points: answer_* in the answer, start and end in the document. "
      "The ring of queries keeps no quotes unless explain.keep_text",
      {{"id", kind::text(), [](const C& c) { return std::to_string(c.number); },
        "Its number in the answer, from 1"},
       {"answer_start", kind::count(), [](const C& c) { return c.citation.answer_start; }},
       {"answer_end", kind::count(), [](const C& c) { return c.citation.answer_end; }},
       {"document_id", kind::or_null(kind::text()),
        [](const C& c) { return unless_empty(c.citation.document_id); },
        "null: an inline document"},
       {"document_index", kind::count(), [](const C& c) { return c.citation.document_index; },
        "Index in the reply's documents"},
       {"chunk", kind::count(), [](const C& c) { return c.citation.chunk; }},
       {"block_ids", kind::list(kind::text()),
        [](const C& c) {
          return json::array(c.citation.block_ids.begin(), c.citation.block_ids.end());
        }},
       {"start", kind::count(), [](const C& c) { return c.citation.start; }},
       {"end", kind::count(), [](const C& c) { return c.citation.end; }},
       {"quote", kind::optional(kind::text()),
        [](const C& c) {
          return c.quote == QuoteUse::kShow ? std::optional<std::string_view>(c.citation.quote)
                                            : std::nullopt;
        },
        "The document's text from start to end"},
       {"page", kind::optional(kind::count()), [](const C& c) { return page_of(c.citation.place); },
        "Where the quote begins, from 1; absent: the document has no pages"},
       {"last_page", kind::optional(kind::count()),
        [](const C& c) { return last_page_of(c.citation.place); }, "Where it ends"},
       {"heading", kind::optional(kind::text()),
        [](const C& c) { return unless_empty(c.citation.place.heading); },
        "Path of headings where the quote begins"},
       {"weight", kind::ratio(), [](const C& c) { return c.citation.weight; },
        "Share of the support of its part of the answer, by words and attention"},
       {"confidence", kind::ratio(), [](const C& c) { return c.citation.confidence; },
        "Estimated probability that the document supports that part of the answer"}});
  return reply;
}

json::array citations_json(const std::vector<Citation>& citations, QuoteUse quote) {
  json::array out;
  for (std::size_t i = 0; i < citations.size(); ++i)
    out.push_back(citation_reply().json({citations[i], i + 1, quote}));
  return out;
}

}  // namespace quire
