#include "server/reply/retrieve_reply.h"

#include "server/json/retrieve_codec.h"
#include "server/reply/document_reply.h"

namespace quire {

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
        "Documents without an embedding yet, for a scorer that uses embeddings"}});
  return reply;
}

}  // namespace quire
