#include "server/reply/query_reply.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/index.h"
#include "server/reply/cache_reply.h"
#include "server/reply/document_reply.h"
#include "server/reply/openai_reply.h"
#include "server/reply/timings_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

using A = QueryAnswer;
using R = QueryRecord;

Reply<R> prompt_tokens_details() {
  return {"",
          "",
          {{"cached_tokens", kind::count(), [](const R& r) { return r.plan.fates.cached(); },
            "Prompt tokens that were not prefilled"},
           {"cache_write_tokens", kind::count(), [](const R& r) { return r.stats.written_tokens; },
            "Prompt tokens whose KV this query wrote to the cache"}}};
}

void widen(std::optional<double>& most, const std::optional<float>& x) {
  if (x) most = std::max(most.value_or(*x), static_cast<double>(*x));
}

DocumentUse use_of(const R& r, const QueryDocument& document) {
  DocumentUse use{document};
  for (const PlannedContext& c : r.plan.contexts) {
    if (!belongs_to(c, document)) continue;
    use.tokens += c.cut ? c.cut->uncut_tokens : c.num_tokens;
    use.blocks += count_of(c.blocks);
    widen(use.keep_share, c.keep_share);
    widen(use.bias_weight, c.bias_weight);
    for (const PlannedBlock& b : c.blocks) {
      use.kept_blocks += b.kept_layers > 0 ? 1 : 0;
      use.recomputed_blocks += b.recomputed_tokens > 0 ? 1 : 0;
      use.recomputed_tokens += b.recomputed_tokens;
      if (r.plan.num_layers > 0)
        use.kept_tokens += static_cast<double>(b.num_tokens) * b.kept_layers / r.plan.num_layers;
    }
  }
  return use;
}

Reply<A>::Fields head(std::string_view object) {
  return {{"id", kind::text(), [](const A& a) { return a.record.id; }},
          {"object", kind::constant(object)},
          {"created_at", kind::time(), [](const A& a) { return rfc3339(a.record.created_ms); }},
          {"model", kind::text(), [](const A& a) { return a.record.model; }}};
}

std::optional<std::string_view> if_shown(const A& a, const std::string& text) {
  return a.texts ? std::optional<std::string_view>(text) : std::nullopt;
}

ReplyField<A> answer_field(const Kind& kind) {
  return {"answer", kind, [](const A& a) { return if_shown(a, a.record.answer); }};
}

/// Returns what every reply about a finished query says of it. `url` is the kind of explain_url.
Reply<A>::Fields rest(const Kind& url) {
  return {{"finish_reason", kind::one_of({"stop", "length", "tool_calls"}),
           [](const A& a) { return a.record.finish_reason; }},
          {"tool_calls", kind::optional(kind::list(kind::component("ToolCall"))),
           [](const A& a) -> std::optional<json::value> {
             if (a.record.tool_calls.empty() || !a.texts) return std::nullopt;
             return tool_calls_json(a.record.tool_calls);
           },
           "Functions that the answer calls"},
          {"cited_answer", kind::optional(kind::text()),
           [](const A& a) -> std::optional<std::string> {
             if (a.record.citation_style.empty() || !a.texts) return std::nullopt;
             return a.record.citation_style.cited_answer(a.record);
           },
           "The answer with its citations in the style of prompt.citation, where one is set"},
          {"citations", kind::list(citation_reply().kind()),
           [](const A& a) {
             return citations_json(a.record.citations, a.texts ? QuoteUse::kShow : QuoteUse::kHide);
           }},
          {"unsupported", kind::list(kind::range()),
           [](const A& a) {
             json::array ranges;
             for (const auto& [begin, end] : a.record.unsupported)
               ranges.push_back(json::array{begin, end});
             return ranges;
           },
           "Sentences of the answer for which no document is likely enough to be the source: no "
           "support was found, and they have no citation. Unicode code points of the answer"},
          {"usage", usage_reply().kind(), [](const A& a) { return usage_json(a.record); }},
          {"timings", timings_reply().kind(), [](const A& a) { return timings_json(a.record); }},
          {"cache", cache_reply().kind(), [](const A& a) { return cache_json(a.record); }},
          {"documents", kind::list(query_document_reply().kind()),
           [](const A& a) { return query_documents_json(a.record); }},
          {"explain_url", url,
           [](const A& a) {
             return a.explain_url ? std::optional("/v1/queries/" + a.record.id + "/explain")
                                  : std::nullopt;
           },
           "Where the explanation of the query is"}};
}

ReplyField<A> explanation_field() {
  return {"explain", kind::optional(kind::component("Explanation")),
          [](const A& a) { return a.explanation; }, "With `explain` blocks"};
}

}  // namespace

const Reply<FateCounts>& fates_reply() {
  using F = FateCounts;
  static const Reply<F> reply(
      "CacheDetails", "The fate of every prompt token: they sum to prompt_tokens",
      {{"reused_tokens", kind::count(), [](const F& f) { return f.reused; },
        "KV read from the cache as it was"},
       {"recomputed_tokens", kind::count(), [](const F& f) { return f.recomputed; },
        "Cached, but computed again for quality"},
       {"computed_tokens", kind::count(), [](const F& f) { return f.computed; },
        "Not cached: question, template, misses"},
       {"dropped_tokens", kind::count(), [](const F& f) { return f.dropped; },
        "Cached, but attended to by no layer"}});
  return reply;
}

const Reply<QueryRecord>& usage_reply() {
  static const Reply<R> reply(
      "Usage", "",
      {{"prompt_tokens", kind::count(), [](const R& r) { return r.plan.prompt_tokens; }},
       {"completion_tokens", kind::count(), [](const R& r) { return r.stats.completion_tokens; }},
       {"total_tokens", kind::count(),
        [](const R& r) { return r.plan.prompt_tokens + r.stats.completion_tokens; }},
       {"prompt_tokens_details", prompt_tokens_details()},
       {"prompt_cache_hit_tokens", kind::count(), [](const R& r) { return r.plan.fates.cached(); },
        "Equal to cached_tokens"},
       {"prompt_cache_miss_tokens", kind::count(),
        [](const R& r) { return r.plan.prompt_tokens - r.plan.fates.cached(); }},
       {"cache_details", fates_reply().kind(),
        [](const R& r) { return fates_reply().json(r.plan.fates); }}});
  return reply;
}

json::object usage_json(const QueryRecord& record) { return usage_reply().json(record); }

const Reply<DocumentUse>& query_document_reply() {
  using D = DocumentUse;
  static const Reply<D> reply(
      "QueryDocument", "",
      {{"id", kind::or_null(kind::text()), [](const D& d) { return unless_empty(d.document.id); },
        "null: an inline document"},
       {"title", kind::optional(kind::or_null(kind::text())),
        [](const D& d) -> std::optional<json::value> {
          if (!d.document.id.empty()) return std::nullopt;
          return null_if_empty(d.document.title);
        },
        "Of inline documents"},
       {"content_hash", kind::or_null(kind::text()),
        [](const D& d) { return unless_empty(d.document.content_hash); }},
       {"read_behind", read_behind_kind(),
        [](const D& d) { return read_behind_name(d.document.read_behind.kind); },
        "What stood before it when its KV was computed, by which auto knows what certificates "
        "say of it"},
       {"score", kind::optional(kind::amount(6)), [](const D& d) { return d.document.score; },
        "Retrieval score, if the service chose the document"},
       {"chunks", kind::optional(kind::list(kind::count())),
        [](const D& d) -> std::optional<json::value> {
          if (d.document.chunks.empty()) return std::nullopt;
          return json::array(d.document.chunks.begin(), d.document.chunks.end());
        },
        "The chunks in the prompt, where the service chose some of them"},
       {"num_chunks", kind::optional(kind::count()),
        [](const D& d) -> std::optional<json::value> {
          if (d.document.chunks.empty()) return std::nullopt;
          return d.document.all_chunks;
        },
        "How many chunks the document has, beside `chunks`"},
       {"tokens", kind::count(), [](const D& d) { return d.tokens; }, "Before prompt compression"},
       {"blocks", kind::count(), [](const D& d) { return d.blocks; }},
       {"kept_blocks", kind::count(), [](const D& d) { return d.kept_blocks; },
        "Blocks kept in at least one layer"},
       {"recomputed_blocks", kind::count(), [](const D& d) { return d.recomputed_blocks; },
        "Blocks with at least one recomputed token"},
       {"kept_tokens", kind::optional(kind::amount(-1)), [](const D& d) { return d.kept_tokens; },
        "A block kept in some layers counts in proportion to them"},
       {"recomputed_tokens", kind::optional(kind::count()),
        [](const D& d) { return d.recomputed_tokens; }},
       {"keep_share", kind::optional(kind::number(4)), [](const D& d) { return d.keep_share; },
        "Share of its middle blocks that were candidates, the largest of its chunks"},
       {"bias_weight", kind::optional(kind::number(4)), [](const D& d) { return d.bias_weight; },
        "Weight with which it biased other documents' queries, the largest of its chunks"}});
  return reply;
}

json::array query_documents_json(const QueryRecord& record) {
  json::array out;
  for (const QueryDocument& d : record.documents)
    out.push_back(query_document_reply().json(use_of(record, d)));
  return out;
}

json::array citations_json(const QueryRecord& record) {
  return citations_json(record.citations, QuoteUse::kShow);
}

const Reply<QueryAnswer>& query_result_reply() {
  static const Reply<A> reply(
      "QueryResult", "",
      Reply<A>::joined({head("query.result"),
                        {answer_field(kind::text())},
                        rest(kind::optional(kind::text())),
                        {{"logprobs", kind::optional(kind::component("ChoiceLogprobs")),
                          [](const A& a) { return a.logprobs; }},
                         explanation_field()}}));
  return reply;
}

const Reply<QueryAnswer>& query_end_reply() {
  static const Reply<A> reply(
      "QueryEnd", "A QueryResult without its answer",
      Reply<A>::joined(
          {head("query.result"), rest(kind::optional(kind::text())), {explanation_field()}}));
  return reply;
}

const Reply<QueryAnswer>& query_entry_reply() {
  static const Reply<A> reply(
      "QueryEntry", "One of the last queries; query and answer only with explain.keep_text",
      Reply<A>::joined({head("query"),
                        {answer_field(kind::optional(kind::text()))},
                        rest(kind::text()),
                        {{"query", kind::optional(kind::text()),
                          [](const A& a) { return if_shown(a, a.record.question); }}}}));
  return reply;
}

const Reply<QueryRecord>& plan_event_reply() {
  static const Reply<R> reply(
      "PlanEvent", "What a streamed query will do, before its first token",
      {{"id", kind::text(), [](const R& r) { return r.id; }},
       {"cache", cache_reply().kind(), [](const R& r) { return cache_json(r); }},
       {"documents", kind::list(query_document_reply().kind()),
        [](const R& r) { return query_documents_json(r); }}});
  return reply;
}

}  // namespace quire
