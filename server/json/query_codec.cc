#include "server/json/query_codec.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <iterator>

#include "server/json/generation_codec.h"
#include "server/json/parse.h"

namespace quire {
namespace json = boost::json;
namespace {

void read_messages(ObjectReader& parent, QueryBody& out) {
  const auto* list = parent.array("messages", 1, 1024);
  if (!list || !parent.ok()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    ObjectReader r((*list)[i], "messages[" + std::to_string(i) + "]");
    ChatMessage m;
    if (r.ok()) {
      r.one_of("role", m.role, {"system", "user", "assistant"});
      if (r.ok() && m.role.empty())
        r.fail("role", r.path_of("role") + " is missing; use system, user or assistant");
      r.string("content", m.content);
      if (r.ok() && !r.has("content")) r.fail("content", r.path_of("content") + " is missing");
      r.finish();
      if (r.ok() && m.role == "system" && i > 0)
        r.fail("role", r.path_of("role") + " is system; only the first message may be");
      if (r.ok() && m.role == "system" && out.system)
        r.fail("role", "system is given twice: beside messages and in them");
    }
    parent.adopt(r.error());
    if (!parent.ok()) return;
    if (m.role == "system") {
      out.system = m.content;
      out.system_param = r.path_of("role");
      continue;
    }
    out.messages.push_back(std::move(m));
    out.message_index.push_back(i);
  }
  if (out.messages.empty()) parent.fail("messages", "messages has no turn of the user");
}

void read_inline_documents(ObjectReader& parent, std::size_t max_documents, QueryBody& out) {
  const auto* list = parent.array("documents", 0, max_documents);
  if (!list || !parent.ok()) return;
  for (std::size_t i = 0; i < list->size(); ++i) {
    ObjectReader r((*list)[i], "documents[" + std::to_string(i) + "]");
    InlineDocument d;
    if (r.ok()) {
      r.string("title", d.title, 64 << 10);
      r.string("text", d.text);
      if (r.ok() && d.text.empty()) r.fail("text", r.path_of("text") + " is missing or empty");
      r.finish();
    }
    parent.adopt(r.error());
    if (!parent.ok()) return;
    d.after_ids = out.document_ids.size();
    out.documents.push_back(std::move(d));
  }
}

json::value text_or_null(const std::string& s) {
  if (s.empty()) return nullptr;
  return json::value(s);
}

std::size_t tier_index(Tier tier) { return static_cast<std::size_t>(tier); }

json::object tier_json(const QueryStats& s, Tier tier) {
  const std::size_t i = tier_index(tier);
  json::object o;
  const bool known = i < std::size(s.tier_blocks);
  o["blocks"] = known ? s.tier_blocks[i] : 0;
  o["tokens"] = known ? s.tier_tokens[i] : 0;
  o["bytes"] = known ? s.tier_bytes[i] : 0;
  return o;
}

MissReason miss_of(const QueryDocument& d, const PlannedContext& c) {
  return d.miss != MissReason::kNone && !c.cached ? d.miss : c.miss;
}

json::array misses_json(const QueryRecord& record) {
  json::array out;
  for (const auto& d : record.documents) {
    // There is one entry per document and reason.
    std::vector<std::pair<MissReason, std::int64_t>> found;
    for (const auto& c : record.plan.contexts) {
      if (static_cast<std::size_t>(c.index) < d.first_context ||
          static_cast<std::size_t>(c.index) >= d.first_context + d.num_contexts)
        continue;
      const MissReason reason = d.id.empty() ? MissReason::kNone : miss_of(d, c);
      if (reason == MissReason::kNone || c.duplicate) continue;
      const auto it = std::find_if(found.begin(), found.end(),
                                   [&](const auto& f) { return f.first == reason; });
      if (it == found.end())
        found.emplace_back(reason, c.num_tokens);
      else
        it->second += c.num_tokens;
    }
    for (const auto& [reason, tokens] : found) {
      json::object o;
      o["document_id"] = d.id;
      o["reason"] = miss_reason_name(reason);
      o["tokens"] = tokens;
      out.push_back(std::move(o));
    }
  }
  return out;
}

json::object options_json(const PlugOptions& options) {
  json::object o;
  for (const auto& [name, value] : options.given()) o[name] = value;
  return o;
}

json::object sparse_prefill_json(const SparsePrefill& s) {
  return {{"band", s.band},
          {"columns", s.columns},
          {"tokens", s.tokens},
          {"attended_share", rounded(s.attended_share, 4)},
          {"note", text_or_null(s.note)}};
}

json::object prompt_compression_json(const PromptCut& cut) {
  return json::object{{"by", cut.by},
                      {"tokens", cut.tokens},
                      {"kept_tokens", cut.kept_tokens},
                      {"removed_tokens", cut.removed_tokens},
                      {"ratio", rounded(cut.ratio(), 4)},
                      {"lookahead_tokens", cut.lookahead_tokens},
                      {"read_before", cut.read_before},
                      {"note", text_or_null(cut.note)}};
}

/// Returns which tokens of each uncached part of the prompt were kept.
json::array kept_parts_json(const PromptCut& cut) {
  json::array out;
  for (const PromptCut::Kept& k : cut.parts) {
    json::array ranges;
    for (const TokenRange& r : k.tokens.kept) ranges.push_back(json::array{r.begin, r.end});
    json::object part;
    part["part"] = k.part == PromptCut::Part::kPrefix    ? "system"
                   : k.part == PromptCut::Part::kContext ? "document"
                                                         : "question";
    if (k.part == PromptCut::Part::kContext) part["document"] = k.context;
    part["tokens"] = k.tokens.uncut_tokens;
    part["kept"] = std::move(ranges);
    out.push_back(std::move(part));
  }
  return out;
}

json::array spans_json(const Plan& plan) {
  json::array out;
  for (const auto& s : plan.spans) {
    json::object o;
    o["name"] = s.name;
    o["start_ms"] = rounded(s.start_ms);
    o["ms"] = rounded(s.ms);
    out.push_back(std::move(o));
  }
  return out;
}

}  // namespace

std::optional<ReadError> read_query(const json::value& body, const QueryDefaults& defaults,
                                    QueryBody& out) {
  out.cache.strategy = defaults.strategy;
  out.cache.compress = defaults.compress;
  out.cache.decode = defaults.decode;
  ObjectReader r(body, "");
  if (!r.ok()) return r.error();
  if (r.has("query")) {
    std::string q;
    r.string("query", q);
    if (r.ok() && q.empty()) r.fail("query", "query is empty");
    out.query = std::move(q);
  }
  if (r.has("system")) {
    std::string s;
    r.string("system", s);
    out.system = std::move(s);
  }
  read_messages(r, out);
  if (r.ok() && out.query.has_value() == !out.messages.empty())
    r.fail("query", out.query ? "query and messages are both given; give one"
                              : "query is missing; give query or messages");
  out.document_ids = r.strings("document_ids", defaults.max_documents);
  for (std::size_t i = 0; i < out.document_ids.size(); ++i)
    out.document_params.push_back("document_ids[" + std::to_string(i) + "]");
  read_inline_documents(r, defaults.max_documents, out);
  if (r.ok() && out.document_ids.size() + out.documents.size() > defaults.max_documents)
    r.fail("documents",
           "the query names " + std::to_string(out.document_ids.size() + out.documents.size()) +
               " documents; at most " + std::to_string(defaults.max_documents) + " are taken");
  read_query_retrieval(r, defaults.max_documents, out.retrieve);
  const bool named = r.has("document_ids") || r.has("documents");
  if (r.ok() && named && out.retrieve)
    r.fail("retrieve",
           "retrieve chooses the documents of a query that names none; leave it or document_ids "
           "and documents out");
  if (!named && !out.retrieve) {
    out.retrieve.emplace();
    out.retrieve->k = std::min(out.retrieve->k, static_cast<std::int64_t>(defaults.max_documents));
  }
  r.string("model", out.model, 256);
  r.boolean("stream", out.stream);
  std::int64_t max_tokens = out.sampling.max_tokens;
  r.integer("max_tokens", max_tokens, 1, 1 << 20);
  out.sampling.max_tokens = static_cast<std::int32_t>(max_tokens);
  read_sampling(r, out.sampling);
  read_logprobs(r, out.sampling);
  read_response_format(r, out.sampling);
  read_cache_and_policies(r, out);
  r.integer("timeout_ms", out.timeout_ms, 1, 3'600'000);
  r.finish();
  return r.error();
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

std::string_view cache_header(const Plan& plan) {
  if (plan.strategy == "recompute") return "BYPASS";
  std::size_t hits = 0, contexts = 0;
  for (const auto& c : plan.contexts) {
    if (c.duplicate) continue;
    ++contexts;
    hits += c.cached && c.miss == MissReason::kNone ? 1 : 0;
  }
  return hits == 0 ? "MISS" : hits == contexts ? "HIT" : "PARTIAL";
}

json::object usage_json(const QueryRecord& r) {
  const FateCounts& f = r.plan.fates;
  const std::int64_t prompt = r.plan.prompt_tokens, cached = f.cached();
  json::object o;
  o["prompt_tokens"] = prompt;
  o["completion_tokens"] = r.stats.completion_tokens;
  o["total_tokens"] = prompt + r.stats.completion_tokens;
  o["prompt_tokens_details"] = json::object{{"cached_tokens", cached},
                                            {"cache_write_tokens", r.stats.written_tokens}};
  o["prompt_cache_hit_tokens"] = cached;
  o["prompt_cache_miss_tokens"] = prompt - cached;
  o["cache_details"] = json::object{{"reused_tokens", f.reused},
                                    {"recomputed_tokens", f.recomputed},
                                    {"computed_tokens", f.computed},
                                    {"dropped_tokens", f.dropped}};
  return o;
}

json::object cache_json(const QueryRecord& r) {
  const Plan& p = r.plan;
  json::object o;
  o["strategy"] = p.strategy;
  o["compress"] = p.compress;
  o["decode"] = p.decode;
  if (!p.decode_reason.empty()) o["decode_reason"] = p.decode_reason;
  o["hit_ratio"] = rounded(p.hit_ratio(), 4);
  o["keep_ratio"] = rounded(p.keep_ratio, 4);
  o["sparsity"] = rounded(1 - p.keep_ratio, 4);
  o["recompute_ratio"] = rounded(p.recompute_ratio, 4);
  std::string fallback = p.fallback.value_or("");
  if (p.strategy == "exact" && !r.exact_note.empty())
    fallback += (fallback.empty() ? "" : "; ") + r.exact_note;
  o["fallback"] = text_or_null(fallback);
  if (!p.reason.empty()) o["reason"] = p.reason;
  o["tiers"] = json::object{{"gpu", tier_json(r.stats, Tier::kGpu)},
                            {"dram", tier_json(r.stats, Tier::kDram)},
                            {"disk", tier_json(r.stats, Tier::kDisk)},
                            {"remote", tier_json(r.stats, Tier::kRemote)}};
  if (!p.options.given().empty()) o["options"] = options_json(p.options);
  if (r.stats.sketch_bytes > 0 || r.stats.sketch_misses > 0) {
    o["sketches"] = json::object{{"bytes", r.stats.sketch_bytes},
                                 {"misses", r.stats.sketch_misses}};
  }
  if (p.prompt_cut) o["prompt_compression"] = prompt_compression_json(*p.prompt_cut);
  if (p.sparse_prefill) o["sparse_prefill"] = sparse_prefill_json(*p.sparse_prefill);
  if (p.compression) {
    const Compression& c = *p.compression;
    o["compression"] = json::object{{"by", c.by},
                                    {"mode", c.dropped ? "drop" : "demote"},
                                    {"rows", c.rows},
                                    {"hot_rows", c.hot_rows},
                                    {"ratio", rounded(c.ratio(), 4)},
                                    {"lookahead_tokens", c.lookahead_tokens},
                                    {"note", text_or_null(c.note)}};
  }
  if (const RetrieveStats& t = r.stats.retrieve; t.sparse_steps > 0 || !t.note.empty()) {
    o["retrieval"] = json::object{
        {"by", p.decode},
        {"steps", t.sparse_steps},
        {"selections", t.selections},
        {"heads_corrected", t.heads_corrected},
        {"heads_kept", t.heads_kept},
        {"pages_wanted", t.pages_wanted},
        {"pages_copied", t.pages_copied},
        {"bytes_copied", t.bytes_copied},
        {"rows_wanted", t.rows_wanted},
        {"rows_copied", t.rows_copied},
        {"bytes_appended", t.bytes_appended},
        {"bytes_offloaded", t.bytes_offloaded},
        {"copies", t.copies},
        {"waits", t.waits},
        {"choose_ms", rounded(t.choose_ms)},
        {"copy_ms", rounded(t.copy_ms)},
        {"wait_ms", rounded(t.wait_ms)},
        {"overlap", t.overlap() ? json::value(rounded(*t.overlap(), 4)) : json::value(nullptr)},
        {"layers_offloaded", t.layers_offloaded},
        {"device_bytes", t.device_bytes},
        {"choosing_bytes", t.choosing_bytes},
        {"rows_scored", t.rows_scored},
        {"rows_attended", t.rows_attended},
        {"note", text_or_null(t.note)}};
  }
  o["misses"] = misses_json(r);
  return o;
}

json::object timings_json(const QueryRecord& r) {
  const QueryStats& s = r.stats;
  json::object o;
  o["queue_ms"] = rounded(s.queue_ms);
  o["tokenize_ms"] = rounded(r.tokenize_ms);
  o["resolve_ms"] = rounded(r.resolve_ms);
  o["lookup_ms"] = rounded(s.lookup_ms);
  o["load_ms"] = rounded(s.load_ms);
  o["query_pass_ms"] = rounded(s.query_pass_ms);
  o["select_ms"] = rounded(s.select_ms);
  o["prefill_ms"] = rounded(s.prefill_ms);
  o["recompute_ms"] = rounded(s.recompute_ms);
  o["ttft_ms"] = rounded(r.ttft_ms);
  o["decode_ms"] = rounded(s.decode_ms);
  if (s.prompt_ms > 0) o["prompt_compression_ms"] = rounded(s.prompt_ms);
  if (s.draft_ms > 0) o["draft_ms"] = rounded(s.draft_ms);
  if (s.compress_ms > 0) o["compress_ms"] = rounded(s.compress_ms);
  if (s.attribution_ms > 0) o["attribution_ms"] = rounded(s.attribution_ms);
  o["total_ms"] = rounded(r.total_ms);
  const double speed = s.decode_ms > 0 && s.completion_tokens > 1
                           ? static_cast<double>(s.completion_tokens - 1) * 1000.0 / s.decode_ms
                           : 0;
  o["tokens_per_second"] = rounded(speed, 1);
  return o;
}

json::array query_documents_json(const QueryRecord& r) {
  json::array out;
  for (const auto& d : r.documents) {
    std::int64_t tokens = 0, blocks = 0, kept = 0, recomputed = 0, recomputed_tokens = 0;
    double kept_tokens = 0;
    std::optional<double> keep_share, bias_weight;  // the largest over several chunks
    const auto widen = [](std::optional<double>& most, const std::optional<float>& x) {
      if (x) most = std::max(most.value_or(*x), static_cast<double>(*x));
    };
    for (const auto& c : r.plan.contexts) {
      if (static_cast<std::size_t>(c.index) < d.first_context ||
          static_cast<std::size_t>(c.index) >= d.first_context + d.num_contexts)
        continue;
      tokens += c.cut ? c.cut->uncut_tokens : c.num_tokens;
      blocks += static_cast<std::int64_t>(c.blocks.size());
      widen(keep_share, c.keep_share);
      widen(bias_weight, c.bias_weight);
      for (const auto& b : c.blocks) {
        kept += b.kept_layers > 0 ? 1 : 0;
        recomputed += b.recomputed_tokens > 0 ? 1 : 0;
        recomputed_tokens += b.recomputed_tokens;
        // A block kept in some layers counts in proportion to them.
        if (r.plan.num_layers > 0)
          kept_tokens += static_cast<double>(b.num_tokens) * b.kept_layers / r.plan.num_layers;
      }
    }
    json::object o;
    o["id"] = text_or_null(d.id);
    if (d.id.empty()) o["title"] = text_or_null(d.title);
    o["content_hash"] = text_or_null(d.content_hash);
    if (d.score) o["score"] = rounded(*d.score, 6);
    o["tokens"] = tokens;
    o["blocks"] = blocks;
    o["kept_blocks"] = kept;
    o["recomputed_blocks"] = recomputed;
    o["kept_tokens"] = kept_tokens;
    o["recomputed_tokens"] = recomputed_tokens;
    if (keep_share) o["keep_share"] = rounded(*keep_share, 4);
    if (bias_weight) o["bias_weight"] = rounded(*bias_weight, 4);
    out.push_back(std::move(o));
  }
  return out;
}

json::array citations_json(const QueryRecord& r) {
  return citations_json(r.citations, QuoteUse::kShow);
}

json::object query_result_json(const QueryRecord& r, bool with_answer, QuoteUse quotes) {
  json::object o;
  o["id"] = r.id;
  o["object"] = "query.result";
  o["created_at"] = rfc3339(r.created_ms);
  o["model"] = r.model;
  if (with_answer) o["answer"] = r.answer;
  o["finish_reason"] = r.finish_reason;
  o["citations"] = citations_json(r.citations, quotes);
  o["usage"] = usage_json(r);
  o["timings"] = timings_json(r);
  o["cache"] = cache_json(r);
  o["documents"] = query_documents_json(r);
  o["explain_url"] = "/v1/queries/" + r.id + "/explain";
  return o;
}

json::object plan_event_json(const QueryRecord& r) {
  json::object o;
  o["id"] = r.id;
  o["cache"] = cache_json(r);
  o["documents"] = query_documents_json(r);
  return o;
}

json::object plan_result_json(const QueryRecord& r) {
  const Plan& p = r.plan;
  json::object o = explain_json(r, {});
  o["object"] = "query.plan";
  o["model"] = r.model;
  json::object usage;
  usage["prompt_tokens"] = p.prompt_tokens;
  usage["cache_details"] = json::object{{"reused_tokens", p.fates.reused},
                                        {"recomputed_tokens", p.fates.recomputed},
                                        {"computed_tokens", p.fates.computed},
                                        {"dropped_tokens", p.fates.dropped}};
  o["usage"] = std::move(usage);
  o["cache"] = cache_json(r);
  o["documents"] = query_documents_json(r);
  o["selection_pending"] = p.selection_pending;
  o["predicted"] = json::object{{"load_ms", rounded(p.predicted_load_ms)},
                                {"prefill_ms", rounded(p.predicted_prefill_ms)}};
  o.erase("spans");
  return o;
}

json::object query_entry_json(const QueryRecord& r, bool with_text) {
  json::object o = query_result_json(r, with_text, with_text ? QuoteUse::kShow : QuoteUse::kHide);
  o["object"] = "query";
  if (with_text) o["query"] = r.question;
  return o;
}

json::object explain_json(const QueryRecord& r, const std::vector<BlockChars>& chars) {
  const Plan& p = r.plan;
  json::object o;
  o["id"] = r.id;
  o["object"] = "query.explain";
  std::int32_t block_tokens = 0;
  for (const auto& c : p.contexts) block_tokens = std::max(block_tokens, c.block_tokens);
  o["block_tokens"] = block_tokens;
  o["layers"] = p.num_layers;
  json::object policy;
  policy["strategy_asked"] = p.strategy_asked;
  policy["strategy"] = p.strategy;
  policy["selector"] = text_or_null(p.selector);
  policy["recomputer"] = text_or_null(p.recomputer);
  policy["compress"] = p.compress;
  policy["decode"] = p.decode;
  policy["keep_ratio"] = rounded(p.keep_ratio, 4);
  policy["recompute_ratio"] = rounded(p.recompute_ratio, 4);
  policy["options"] = options_json(p.options);
  policy["fallback"] = p.fallback ? json::value(*p.fallback) : json::value(nullptr);
  policy["reason"] = text_or_null(p.reason);
  o["policy"] = std::move(policy);
  json::array blocks;
  std::size_t index = 0;
  for (const auto& c : p.contexts) {
    const std::string& id = c.document_id;
    for (const auto& b : c.blocks) {
      json::object item;
      item["index"] = index;
      item["block_id"] = block_id_text(b.id);
      item["document_id"] = text_or_null(id);
      item["chunk"] = c.chunk;
      const TokenRange tokens = uncut_range(c, b);
      item["tokens"] = json::array{tokens.begin, tokens.end};
      if (c.cut) item["cut_tokens"] = tokens.end - tokens.begin - b.num_tokens;
      if (index < chars.size() && chars[index].known)
        item["chars"] = json::array{chars[index].begin, chars[index].end};
      else
        item["chars"] = nullptr;
      item["action"] = fate_name(b.action);
      const bool found = c.cached && b.tier != Tier::kNone;
      item["tier"] = found ? json::value(tier_name(b.tier)) : json::value(nullptr);
      item["score"] = rounded(static_cast<double>(b.score), 6);
      item["kept_layers"] = b.kept_layers;
      item["recomputed_tokens"] = b.recomputed_tokens;
      item["load_ms"] = rounded(b.load_ms);
      if (b.hot_share) item["hot_share"] = rounded(static_cast<double>(*b.hot_share), 4);
      blocks.push_back(std::move(item));
      ++index;
    }
  }
  o["blocks"] = std::move(blocks);
  o["documents"] = query_documents_json(r);
  if (p.prompt_cut && !p.prompt_cut->parts.empty())
    o["prompt_compression"] = kept_parts_json(*p.prompt_cut);
  if (p.sparse_prefill) o["sparse_prefill"] = sparse_prefill_json(*p.sparse_prefill);
  o["prefix_tokens"] = p.prefix_tokens;
  o["suffix_tokens"] = p.suffix_tokens;
  o["spans"] = spans_json(p);
  return o;
}

}  // namespace quire
