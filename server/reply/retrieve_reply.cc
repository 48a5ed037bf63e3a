#include "server/reply/retrieve_reply.h"

#include <boost/json/serialize.hpp>
#include <utility>

#include "server/json/retrieve_codec.h"
#include "server/json/text.h"
#include "server/reply/document_reply.h"

namespace quire {
namespace json = boost::json;

const Reply<Passage>& passage_reply() {
  using P = Passage;
  static const Reply<P> reply(
      "Passage", "A passage of a document, ranked",
      {{"document_id", kind::text(), [](const P& p) { return p.document_id; }},
       {"title", kind::optional(kind::or_null(kind::text())),
        [](const P& p) { return null_if_empty(p.title); }},
       {"chunk", kind::count(), [](const P& p) { return p.chunk; },
        "Of whole documents, the chunk with the best score"},
       {"text", kind::text(), [](const P& p) { return p.text; }},
       {"score", kind::number(6), [](const P& p) { return p.score; }},
       {"start", kind::count(), [](const P& p) { return p.start; },
        "Unicode code points of the document's text"},
       {"end", kind::count(), [](const P& p) { return p.end; }},
       {"page", kind::optional(kind::count()), [](const P& p) { return page_of(p.place); },
        "Where the text begins, from 1; absent: the document has no pages"},
       {"last_page", kind::optional(kind::count()),
        [](const P& p) { return last_page_of(p.place); }, "Where it ends"},
       {"heading", kind::optional(kind::text()),
        [](const P& p) { return unless_empty(p.place.heading); },
        "Path of headings where it begins"},
       {"metadata", kind::map(), [](const P& p) { return metadata_object(p.metadata_json); },
        "Of the document"}});
  return reply;
}

const Reply<RankedPassages>& retrieve_reply() {
  using P = RankedPassages;
  static const Reply<P> reply(
      "Passages", "Best first",
      {{"object", kind::constant("list")},
       {"data", kind::list(passage_reply().kind()),
        [](const P& p) { return passage_reply().list(p.passages); }},
       {"scorer", kind::text(), [](const P& p) { return scorer_name(p.scorer); },
        "What ranked them"},
       {"pending_documents", kind::optional(kind::count()),
        [](const P& p) { return p.pending_documents; },
        "Documents without an embedding yet, for a scorer that uses embeddings"},
       {"reranker", kind::optional(kind::text()),
        [](const P& p) { return unless_empty(p.reranker); },
        "The cross-encoder that ranked the best of them anew; their scores are its own, 0 to 1"}});
  return reply;
}

namespace {

constexpr std::size_t kWrittenAtOnce = 64 << 10;  // of a text
constexpr std::string_view kEmptyText = R"("text":"")", kEmptyData = R"("data":[])";

/// Appends what a JSON string of the text holds between its quotes.
void append_escaped(std::string_view text, std::string& out) {
  for (std::size_t at = 0; at < text.size(); at += kWrittenAtOnce) {
    const std::string piece = json::serialize(text.substr(at, kWrittenAtOnce));
    out.append(piece, 1, piece.size() - 2);
  }
}

/// Splits JSON in front of the last character of `empty`, which stands there before any member of a
/// caller: a quote within a text has a backslash before it.
std::pair<std::string_view, std::string_view> split_at(std::string_view whole,
                                                       std::string_view empty) {
  const std::size_t at = whole.find(empty) + empty.size() - 1;
  return {whole.substr(0, at), whole.substr(at)};
}

}  // namespace

std::string take_retrieve_text(std::vector<Passage>& passages, const RankedPassages& reply) {
  const std::vector<Passage> none;
  const std::string whole = to_text(
      retrieve_reply().json({none, reply.scorer, reply.pending_documents, reply.reranker}));
  const auto [head, tail] = split_at(whole, kEmptyData);
  std::string out(head);
  for (Passage& p : passages) {
    if (&p != &passages.front()) out.push_back(',');
    const std::string text = std::exchange(p.text, std::string());
    const std::string rest = to_text(passage_reply().json(p));
    const auto [before, behind] = split_at(rest, kEmptyText);
    out.append(before);
    append_escaped(text, out);
    out.append(behind);
  }
  return out.append(tail);
}

const Reply<RankedText>& ranked_text_reply() {
  using T = RankedText;
  static const Reply<T> reply(
      "RankedText", "A text of the request, ranked",
      {{"index", kind::count(), [](const T& t) { return t.index; }, "Of the request's documents"},
       {"relevance_score", kind::number(6), [](const T& t) { return t.score; }},
       {"document", kind::optional(kind::map()),
        [](const T& t) {
          return t.text ? std::optional(json::object{{"text", *t.text}}) : std::nullopt;
        },
        "Its text, with return_documents"}});
  return reply;
}

const Reply<RankedTexts>& rerank_reply() {
  using T = RankedTexts;
  static const Reply<T> reply(
      "RankedTexts", "Best first",
      {{"id", kind::text(), [](const T& t) { return t.id; }},
       {"model", kind::text(), [](const T& t) { return t.model; }, "What ranked them"},
       {"scorer", kind::one_of({"cross_encoder", "encoder", "bm25"}),
        [](const T& t) { return t.scorer; },
        "cross_encoder: 0 to 1, by retrieve.reranker; encoder: cosine, by retrieve.encoder; bm25: "
        "0 or more, by words"},
       {"results", kind::list(ranked_text_reply().kind()),
        [](const T& t) { return ranked_text_reply().list(t.results); }},
       {"usage", kind::map(),
        [](const T& t) {
          return json::object{{"total_tokens", t.tokens}};
        },
        "total_tokens: what the model read; 0 by words"}});
  return reply;
}

}  // namespace quire
