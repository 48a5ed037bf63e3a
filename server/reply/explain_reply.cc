#include "server/reply/explain_reply.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstddef>

#include "base/index.h"
#include "server/reply/cache_reply.h"
#include "server/reply/query_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

using E = ExplainedQuery;

const Reply<Span>& span_reply() {
  using S = Span;
  static const Reply<S> reply(
      "", "",
      {{"name", kind::text(), [](const S& s) { return s.name; }},
       {"start_ms", kind::milliseconds(), [](const S& s) { return s.start_ms; },
        "Since the engine took the query"},
       {"ms", kind::milliseconds(), [](const S& s) { return s.ms; }}});
  return reply;
}

std::int32_t largest_block(const Plan& plan) {
  std::int32_t most = 0;
  for (const PlannedContext& c : plan.contexts) most = std::max(most, c.block_tokens);
  return most;
}

json::array blocks_json(const E& e) {
  json::array out;
  for (const PlannedContext& c : e.record.plan.contexts)
    for (const PlannedBlock& b : c.blocks) {
      const std::size_t i = out.size();
      ExplainedBlock block{c, b, i, uncut_range(c, b)};
      block.in_context = to_size(&b - c.blocks.data());
      if (i < e.chars.size() && e.chars[i].known)
        block.chars = json::array{e.chars[i].begin, e.chars[i].end};
      if (i < e.texts.size()) block.text = e.texts[i] ? json::value(*e.texts[i]) : json::value();
      out.push_back(explained_block_reply().json(block));
    }
  return out;
}

std::optional<json::array> kept_parts(const E& e) {
  const auto& cut = e.record.plan.prompt_cut;
  if (!cut || cut->parts.empty()) return std::nullopt;
  return kept_part_reply().list(cut->parts);
}

/// Returns what explanations and plans have in common. `model` and what follows it is the plan's.
Reply<E>::Fields fields(std::string_view object) {
  return {{"id", kind::text(), [](const E& e) { return e.record.id; }},
          {"object", kind::constant(object)},
          {"block_tokens", kind::count(), [](const E& e) { return largest_block(e.record.plan); },
           "Of the largest block"},
          {"layers", kind::count(), [](const E& e) { return e.record.plan.num_layers; }},
          {"policy", policy_reply().kind(),
           [](const E& e) { return policy_reply().json(e.record.plan); }},
          {"blocks", kind::list(explained_block_reply().kind()), blocks_json, "In prompt order"},
          {"documents", kind::list(query_document_reply().kind()),
           [](const E& e) { return query_documents_json(e.record); }},
          {"prompt_compression", kind::optional(kind::list(kept_part_reply().kind())), kept_parts},
          {"sparse_prefill", kind::optional(sparse_prefill_reply().kind()),
           [](const E& e) { return sparse_prefill_reply().json(e.record.plan.sparse_prefill); }},
          {"prefix_tokens", kind::optional(kind::count()),
           [](const E& e) { return e.record.plan.prefix_tokens; }, "Before the documents"},
          {"suffix_tokens", kind::optional(kind::count()),
           [](const E& e) { return e.record.plan.suffix_tokens; }, "Behind the documents"}};
}

/// Returns the ranges of layers that keep the block; none: all do, or none does.
std::optional<json::array> layers_of(const ExplainedBlock& b) {
  const std::vector<bool>& kept = b.context.kept_in;
  if (kept.empty()) return std::nullopt;
  const std::size_t layers = kept.size() / b.context.blocks.size();
  const std::size_t row = b.in_context * layers;
  json::array out;
  std::size_t count = 0;
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (!kept[row + layer]) continue;
    ++count;
    if (layer > 0 && kept[row + layer - 1])
      out.back().as_array()[1] = layer + 1;
    else
      out.push_back(json::array{layer, layer + 1});
  }
  if (count == 0 || count == layers) return std::nullopt;
  return out;
}

const Reply<Plan>& plan_usage_reply() {
  using P = Plan;
  static const Reply<P> reply(
      "", "",
      {{"prompt_tokens", kind::count(), [](const P& p) { return p.prompt_tokens; }},
       {"cache_details", fates_reply().kind(),
        [](const P& p) { return fates_reply().json(p.fates); }}});
  return reply;
}

const Reply<Plan>& predicted_reply() {
  using P = Plan;
  static const Reply<P> reply(
      "", "",
      {{"load_ms", kind::milliseconds(), [](const P& p) { return p.predicted_load_ms; }},
       {"prefill_ms", kind::milliseconds(), [](const P& p) { return p.predicted_prefill_ms; }}});
  return reply;
}

}  // namespace

const Reply<Plan>& policy_reply() {
  using P = Plan;
  static const Reply<P> reply(
      "Policy", "",
      {{"strategy_asked", kind::text(), [](const P& p) { return p.strategy_asked; }},
       {"strategy", kind::text(), [](const P& p) { return p.strategy; }, "The one in use"},
       {"selector", kind::optional(kind::or_null(kind::text())),
        [](const P& p) { return null_if_empty(p.selector); },
        "Chose the blocks that exist in the working cache"},
       {"recomputer", kind::optional(kind::or_null(kind::text())),
        [](const P& p) { return null_if_empty(p.recomputer); },
        "Chose the tokens that were computed again"},
       {"compress", kind::optional(kind::text()), [](const P& p) { return p.compress; }},
       {"decode", kind::optional(kind::text()), [](const P& p) { return p.decode; }},
       {"keep_ratio", kind::ratio(), [](const P& p) { return p.keep_ratio; }},
       {"recompute_ratio", kind::ratio(), [](const P& p) { return p.recompute_ratio; }},
       {"options", kind::optional(kind::map()), [](const P& p) { return options_json(p.options); },
        "As given in the request"},
       {"fallback", kind::or_null(kind::text()), [](const P& p) { return p.fallback; },
        "Why the plan differs from the request"},
       {"reason", kind::optional(kind::or_null(kind::text())),
        [](const P& p) { return null_if_empty(p.reason); }, "Why auto chose the strategy"}});
  return reply;
}

const Reply<ExplainedBlock>& explained_block_reply() {
  using B = ExplainedBlock;
  static const Reply<B> reply(
      "ExplainedBlock", "",
      {{"index", kind::count(), [](const B& b) { return b.index; }},
       {"block_id", kind::text(), [](const B& b) { return block_id_text(b.block.id); }},
       {"document_id", kind::or_null(kind::text()),
        [](const B& b) { return unless_empty(b.context.document_id); }, "null: an inline document"},
       {"chunk", kind::count(), [](const B& b) { return b.context.chunk; }},
       {"tokens", kind::range(),
        [](const B& b) {
          return json::array{b.tokens.begin, b.tokens.end};
        },
        "Tokens of the chunk, before prompt compression"},
       {"cut_tokens", kind::optional(kind::count()),
        [](const B& b) {
          return b.context.cut ? std::optional(b.tokens.end - b.tokens.begin - b.block.num_tokens)
                               : std::nullopt;
        },
        "Tokens of the range that prompt compression removed"},
       {"chars", kind::or_null(kind::range()), [](const B& b) { return b.chars; },
        "Unicode code points of the document's text, where known"},
       {"action", kind::one_of({"reused", "recomputed", "computed", "dropped"}),
        [](const B& b) { return fate_name(b.block.action); }},
       {"tier", kind::tier_or_null(),
        [](const B& b) {
          const bool found = b.context.cached && b.block.tier != Tier::kNone;
          return found ? std::optional(tier_name(b.block.tier)) : std::nullopt;
        },
        "Where it was found"},
       {"score", kind::number(6), [](const B& b) { return b.block.score; },
        "Given by the selector"},
       {"kept_layers", kind::count(), [](const B& b) { return b.block.kept_layers; }},
       {"layers", kind::optional(kind::list(kind::range())), layers_of,
        "Half-open ranges of the layers that keep it, where some do and others do not"},
       {"recomputed_tokens", kind::count(), [](const B& b) { return b.block.recomputed_tokens; }},
       {"load_ms", kind::milliseconds(), [](const B& b) { return b.block.load_ms; }},
       {"hot_share", kind::optional(kind::ratio()), [](const B& b) { return b.block.hot_share; },
        "Share of the block's rows, over layers and KV heads, that stay hot after compression"},
       {"text", kind::optional(kind::or_null(kind::text())), [](const B& b) { return b.text; },
        "With `include` text"}});
  return reply;
}

const Reply<PromptCut::Kept>& kept_part_reply() {
  using K = PromptCut::Kept;
  static const Reply<K> reply(
      "KeptPart", "Which tokens of an uncached part of the prompt stayed, as half-open ranges",
      {{"part", kind::one_of({"system", "document", "question"}),
        [](const K& k) {
          return k.part == PromptCut::Part::kPrefix    ? "system"
                 : k.part == PromptCut::Part::kContext ? "document"
                                                       : "question";
        }},
       {"document", kind::optional(kind::count()),
        [](const K& k) {
          return k.part == PromptCut::Part::kContext ? std::optional(k.context) : std::nullopt;
        },
        "Which chunk of the prompt's documents, from 0"},
       {"tokens", kind::count(), [](const K& k) { return k.tokens.uncut_tokens; },
        "Before the cut"},
       {"kept", kind::list(kind::range()), [](const K& k) {
          json::array ranges;
          for (const TokenRange& r : k.tokens.kept) ranges.push_back(json::array{r.begin, r.end});
          return ranges;
        }}});
  return reply;
}

const Reply<ExplainedQuery>& explanation_reply() {
  static const Reply<E> reply(
      "Explanation", "",
      Reply<E>::joined({fields("query.explain"),
                        {{"spans", kind::list(span_reply().kind()),
                          [](const E& e) { return span_reply().list(e.record.plan.spans); },
                          "What the query did, over time"}}}));
  return reply;
}

json::object explain_json(const QueryRecord& record, const std::vector<BlockChars>& chars) {
  return explanation_reply().json(E{record, chars});
}

const Reply<QueryRecord>& wording_reply() {
  using R = QueryRecord;
  static const Reply<R> reply(
      "PromptWording", "",
      {{"intro", kind::text(), [](const R& r) { return r.wording.intro; },
        "Before the first document"},
       {"document", kind::text(), [](const R& r) { return r.wording.document; },
        "Of each document; a document without a title has none of {title}"},
       {"question", kind::text(), [](const R& r) { return r.wording.question; },
        "Before the question"},
       {"citation", kind::text(), [](const R& r) { return r.citation_style.pattern(); },
        "How citations are written into `cited_answer`; empty: there is none"}});
  return reply;
}

const Reply<ExplainedQuery>& query_plan_reply() {
  static const Reply<E> reply(
      "QueryPlan", "",
      Reply<E>::joined(
          {fields("query.plan"),
           {{"predicted", predicted_reply().kind(),
             [](const E& e) { return predicted_reply().json(e.record.plan); }},
            {"model", kind::text(), [](const E& e) { return e.record.model; }},
            {"usage", plan_usage_reply().kind(),
             [](const E& e) { return plan_usage_reply().json(e.record.plan); }},
            {"prompt", wording_reply().kind(),
             [](const E& e) { return wording_reply().json(e.record); },
             "The words around documents and question, without the markup of turns, and the "
             "citation style"},
            {"cache", cache_reply().kind(), [](const E& e) { return cache_json(e.record); }},
            {"selection_pending", kind::flag(),
             [](const E& e) { return e.record.plan.selection_pending; },
             "The question has yet to decide which blocks are kept"}}}));
  return reply;
}

json::object plan_result_json(const QueryRecord& record) {
  return query_plan_reply().json(E{record});
}

std::string block_id_text(const std::array<std::uint8_t, 16>& id) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "b-";
  for (std::size_t i = 0; i < 6; ++i) {
    out.push_back(kHex[id[i] >> 4]);
    out.push_back(kHex[id[i] & 15]);
  }
  return out;
}

}  // namespace quire
