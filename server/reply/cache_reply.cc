#include "server/reply/cache_reply.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"

namespace quire {
namespace json = boost::json;
namespace {

using R = QueryRecord;

Reply<R> tiers_reply() {
  Reply<R>::Fields fields;
  for (const Tier tier : {Tier::kGpu, Tier::kDram, Tier::kDisk, Tier::kRemote})
    fields.push_back({tier_name(tier), tier_use_reply().kind(), [tier](const R& r) {
                        return tier_use_reply().json(TierUse{r.stats, tier});
                      }});
  return {"", "", std::move(fields)};
}

const Reply<QueryStats>& sketches_reply() {
  using S = QueryStats;
  static const Reply<S> reply(
      "", "Small summaries of contexts, read to choose blocks",
      {{"bytes", kind::count(), [](const S& s) { return s.sketch_bytes; }, "Bytes read"},
       {"misses", kind::count(), [](const S& s) { return s.sketch_misses; },
        "Sketches that were lost, corrupt or outdated; their contexts were computed again"}});
  return reply;
}

const Reply<PromptCut>& prompt_cut_reply() {
  using P = PromptCut;
  static const Reply<P> reply(
      "", "Where it was asked for; removed_tokens counts copies of a document, too",
      {{"by", kind::text(), [](const P& p) { return p.by; }, "The prompt compressor"},
       {"tokens", kind::count(), [](const P& p) { return p.tokens; }, "Tokens of uncached text"},
       {"kept_tokens", kind::count(), [](const P& p) { return p.kept_tokens; }},
       {"removed_tokens", kind::count(), [](const P& p) { return p.removed_tokens; }},
       {"ratio", kind::ratio(), [](const P& p) { return p.ratio(); }, "kept_tokens of tokens"},
       {"lookahead_tokens", kind::count(), [](const P& p) { return p.lookahead_tokens; },
        "Tokens of the draft's answer that ranked tokens along with the prompt"},
       {"read_before", kind::optional(kind::flag()), [](const P& p) { return p.read_before; },
        "The draft had just read this prompt for an equal request, and did not read it again"},
       {"note", kind::or_null(kind::text()), [](const P& p) { return unless_empty(p.note); },
        "Why the text was left unchanged"}});
  return reply;
}

const Reply<Compression>& compression_reply() {
  using C = Compression;
  static const Reply<C> reply(
      "", "What a compressor did to the working cache before the answer began",
      {{"by", kind::text(), [](const C& c) { return c.by; }, "The compressor"},
       {"mode", kind::one_of({"demote", "drop"}),
        [](const C& c) { return c.dropped ? "drop" : "demote"; },
        "Whether other rows stay in the cache, demoted, or leave it"},
       {"rows", kind::count(), [](const C& c) { return c.rows; }, "Over all layers and KV heads"},
       {"hot_rows", kind::count(), [](const C& c) { return c.hot_rows; }},
       {"ratio", kind::ratio(), [](const C& c) { return c.ratio(); }, "hot_rows of rows"},
       {"lookahead_tokens", kind::count(), [](const C& c) { return c.lookahead_tokens; },
        "Tokens of the draft's answer that ranked rows along with the question"},
       {"note", kind::or_null(kind::text()), [](const C& c) { return unless_empty(c.note); },
        "Why a requested look-ahead is missing"}});
  return reply;
}

ReplyField<R> retrieval_field(const RetrieveStat& stat) {
  if (const auto* count = std::get_if<std::int64_t RetrieveStats::*>(&stat.member))
    return {stat.name, kind::count(), [m = *count](const R& r) { return r.stats.retrieve.*m; },
            stat.about};
  const auto ms = std::get<double RetrieveStats::*>(stat.member);
  return {stat.name, kind::milliseconds(), [ms](const R& r) { return r.stats.retrieve.*ms; },
          stat.about};
}

Reply<R> retrieval_reply() {
  Reply<R>::Fields fields{
      {"by", kind::text(), [](const R& r) { return r.plan.decode; }, "The retriever"}};
  for (const RetrieveStat& stat : kRetrieveStats) {
    fields.push_back(retrieval_field(stat));
    // The share follows the times that it is made of.
    if (stat.name == "wait_ms")
      fields.push_back({"overlap", kind::or_null(kind::ratio()),
                        [](const R& r) { return r.stats.retrieve.overlap(); },
                        "Share of copy_ms that no step waited for; null: nothing was copied beside "
                        "the computation, or a device copied, which is not timed"});
  }
  fields.push_back({"note", kind::or_null(kind::text()),
                    [](const R& r) { return unless_empty(r.stats.retrieve.note); },
                    "Why it did not work as its name says; null: it did"});
  return {"",
          "What a retriever did, over all layers and decode steps; absent where every step "
          "attended to everything and nothing is to be said of it",
          std::move(fields)};
}

/// Tokens of one document that were not taken from the cache, for one reason.
struct Miss {
  std::string_view document_id;
  MissReason reason = MissReason::kNone;
  std::int64_t tokens = 0;
};

const Reply<Miss>& miss_reply() {
  static const Reply<Miss> reply(
      "", "",
      {{"document_id", kind::text(), [](const Miss& m) { return m.document_id; }},
       {"reason",
        kind::one_of({"not_cached", "evicted", "model_changed", "salt_mismatch", "corrupt",
                      "record_missing", "tier_unavailable", "policy_off"}),
        [](const Miss& m) { return miss_reason_name(m.reason); },
        "policy_off: the strategy does not read it from the cache, though it is there"},
       {"tokens", kind::count(), [](const Miss& m) { return m.tokens; }}});
  return reply;
}

/// Returns one entry per document and reason.
std::vector<Miss> misses_of(const R& record) {
  std::vector<Miss> out;
  for (const QueryDocument& d : record.documents) {
    if (d.id.empty()) continue;
    const std::size_t first = out.size();
    for (const PlannedContext& c : record.plan.contexts) {
      if (!belongs_to(c, d) || c.duplicate) continue;
      const bool known_before = d.miss != MissReason::kNone && !c.cached;
      const MissReason reason = known_before ? d.miss : c.miss;
      if (reason == MissReason::kNone) continue;
      const auto found = std::find_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                                      [&](const Miss& m) { return m.reason == reason; });
      if (found == out.end())
        out.push_back({d.id, reason, c.num_tokens});
      else
        found->tokens += c.num_tokens;
    }
  }
  return out;
}

std::string fallback_of(const R& r) {
  std::string out = r.plan.fallback.value_or("");
  if (r.plan.strategy == "exact" && !r.exact_note.empty())
    out += (out.empty() ? "" : "; ") + r.exact_note;
  return out;
}

/// Returns the object if something is to be said there.
template <class T>
std::optional<json::object> if_any(bool any, const Reply<T>& reply, const T& of) {
  return any ? std::optional(reply.json(of)) : std::nullopt;
}

Reply<R>::Fields fields() {
  return {
      {"strategy", kind::text(), [](const R& r) { return r.plan.strategy; }, "The one in use"},
      {"compress", kind::text(), [](const R& r) { return r.plan.compress; }},
      {"decode", kind::text(), [](const R& r) { return r.plan.decode; }},
      {"decode_reason", kind::optional(kind::text()),
       [](const R& r) { return unless_empty(r.plan.decode_reason); },
       "Why cache.decode auto became decode"},
      {"hit_ratio", kind::ratio(), [](const R& r) { return r.plan.hit_ratio(); },
       "Share of the prompt that was not prefilled"},
      {"keep_ratio", kind::ratio(), [](const R& r) { return r.plan.keep_ratio; },
       "Share of document tokens attended to"},
      {"sparsity", kind::ratio(), [](const R& r) { return 1 - r.plan.keep_ratio; },
       "1 - keep_ratio"},
      {"recompute_ratio", kind::ratio(), [](const R& r) { return r.plan.recompute_ratio; },
       "Share of document tokens recomputed"},
      {"fallback", kind::or_null(kind::text()),
       [](const R& r) -> std::optional<std::string> {
         std::string text = fallback_of(r);
         if (text.empty()) return std::nullopt;
         return text;
       },
       "Why the strategy differs from the one asked for"},
      {"reason", kind::optional(kind::text()),
       [](const R& r) { return unless_empty(r.plan.reason); }, "Why auto chose the strategy"},
      {"tiers", tiers_reply()},
      {"options", kind::optional(kind::map()),
       [](const R& r) -> std::optional<json::object> {
         if (r.plan.options.given().empty()) return std::nullopt;
         return options_json(r.plan.options);
       },
       "As given in the request"},
      {"sketches", kind::optional(sketches_reply().kind()),
       [](const R& r) {
         return if_any(r.stats.sketch_bytes > 0 || r.stats.sketch_misses > 0, sketches_reply(),
                       r.stats);
       }},
      {"prompt_compression", kind::optional(prompt_cut_reply().kind()),
       [](const R& r) { return prompt_cut_reply().json(r.plan.prompt_cut); }},
      {"sparse_prefill", kind::optional(sparse_prefill_reply().kind()),
       [](const R& r) { return sparse_prefill_reply().json(r.plan.sparse_prefill); }},
      {"compression", kind::optional(compression_reply().kind()),
       [](const R& r) { return compression_reply().json(r.plan.compression); }},
      {"retrieval", kind::optional(retrieval_reply().kind()),
       [reply = retrieval_reply()](const R& r) {
         const RetrieveStats& s = r.stats.retrieve;
         return if_any(s.sparse_steps > 0 || !s.note.empty(), reply, r);
       }},
      {"misses", kind::list(miss_reply().kind()),
       [](const R& r) { return miss_reply().list(misses_of(r)); }},
  };
}

}  // namespace

bool belongs_to(const PlannedContext& context, const QueryDocument& document) {
  const auto index = to_size(context.index);
  return index >= document.first_context && index < document.first_context + document.num_contexts;
}

json::object options_json(const PlugOptions& options) {
  json::object o;
  for (const auto& [name, value] : options.given()) o[name] = value;
  return o;
}

const Reply<TierUse>& tier_use_reply() {
  using T = TierUse;
  static const Reply<T> reply(
      "TierUse", "",
      {{"blocks", kind::count(), [](const T& t) { return t.of(t.stats.tier_blocks); },
        "Document blocks found there"},
       {"tokens", kind::count(), [](const T& t) { return t.of(t.stats.tier_tokens); },
        "Document tokens found there"},
       {"bytes", kind::count(), [](const T& t) { return t.of(t.stats.tier_bytes); },
        "Bytes of KV that were read"}});
  return reply;
}

const Reply<SparsePrefill>& sparse_prefill_reply() {
  using S = SparsePrefill;
  static const Reply<S> reply(
      "SparsePrefill",
      "Where it was asked for; tokens: prompt rows that attended to a band and columns alone",
      {{"band", kind::count(), [](const S& s) { return s.band; },
        "Preceding rows that each row attends to"},
       {"columns", kind::count(), [](const S& s) { return s.columns; },
        "Rows before the band that each row attends to, per layer and KV head"},
       {"tokens", kind::count(), [](const S& s) { return s.tokens; }},
       {"attended_share", kind::ratio(), [](const S& s) { return s.attended_share; },
        "Share of their preceding keys that these rows attended to"},
       {"note", kind::or_null(kind::text()), [](const S& s) { return unless_empty(s.note); },
        "Why the prompt attended to everything; null: it did not"}});
  return reply;
}

const Reply<QueryRecord>& cache_reply() {
  static const Reply<QueryRecord> reply("CacheUse", "", fields());
  return reply;
}

json::object cache_json(const QueryRecord& record) { return cache_reply().json(record); }

std::string_view cache_header(const Plan& plan) {
  if (plan.strategy == "recompute") return "BYPASS";
  std::size_t hits = 0, contexts = 0;
  for (const PlannedContext& c : plan.contexts) {
    if (c.duplicate) continue;
    ++contexts;
    hits += c.cached && c.miss == MissReason::kNone ? 1 : 0;
  }
  return hits == 0 ? "MISS" : hits == contexts ? "HIT" : "PARTIAL";
}

}  // namespace quire
