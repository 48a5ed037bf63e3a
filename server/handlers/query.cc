#include <atomic>
#include <boost/json/array.hpp>
#include <cmath>
#include <mutex>

#include "cachestore/key.h"
#include "engine/engine.h"
#include "engine/pipeline/strategy.h"
#include "kernels/base/log.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/json/query_codec.h"
#include "server/request_id.h"

namespace quire {
namespace json = boost::json;
namespace {

using SteadyClock = std::chrono::steady_clock;

double ms_since(SteadyClock::time_point t) { return std::chrono::duration<double, std::milli>(SteadyClock::now() - t).count(); }

/// A query on its way to the engine.
struct Preparation {
  std::shared_ptr<Call> call;
  QueryBody body;
  bool plan_only = false;
  SteadyClock::time_point deadline;
  std::shared_ptr<QueryRecord> record = std::make_shared<QueryRecord>();
  QueryRequest request;
};

Problem engine_problem(const Status& status) {
  if (const auto window = parse_window_exceeded(status)) {
    Problem p = problem_of(status, "context_length_exceeded");
    p.extra["limit"] = window->limit;
    p.extra["actual"] = window->actual;
    return p;
  }
  if (status.code() == Code::kInternal || status.code() == Code::kCorruption) log_error("a query failed", {{"reason", status.to_string()}});
  if (status.code() == Code::kDeadlineExceeded) return make_problem("deadline_exceeded", "the query was not finished within timeout_ms", "timeout_ms");
  return problem_of(status);
}

/// Receives the engine's events and turns them into the reply.
class ReplySink final : public QuerySink {
 public:
  /// `shadow`: to be filled and checked if the strategy turns out to be an approximation; may be null.
  ReplySink(std::shared_ptr<Call> call, std::shared_ptr<QueryRecord> record, bool stream, ExplainLevel explain, std::shared_ptr<ShadowSample> shadow)
      : call_(std::move(call)), record_(std::move(record)), stream_(stream), explain_(explain), shadow_(std::move(shadow)) {}

  void on_plan(const Plan& plan) override {
    record_->plan = plan;
    if (shadow_ && is_exact(plan)) shadow_.reset();
    if (!stream_) return;
    call_->start_events({{"X-Cache", std::string(cache_header(plan))}});
    started_ = true;
    (void)call_->event("plan", plan_event_json(*record_));
  }

  bool wants_logits() const override { return shadow_ != nullptr; }
  void on_logits(std::span<const float> logits) override { shadow_->add(logits); }

  bool on_token(std::int32_t, std::string_view text) override {
    if (record_->ttft_ms == 0) record_->ttft_ms = call_->elapsed_ms();
    record_->answer.append(text);
    if (call_->exchange->client_gone()) return false;
    if (!stream_ || text.empty()) return true;
    json::object delta;
    delta["text"] = text;
    return call_->event("delta", delta);
  }

  void on_done(const Status& status, const Plan& plan, const QueryStats& stats, FinishReason reason) override {
    record_->plan = plan;
    record_->stats = stats;
    record_->finish_reason = finish_reason_name(reason);
    record_->total_ms = call_->elapsed_ms();
    record_->finished = status.ok();
    if (shadow_) shadow_->strategy = plan.strategy;
    auto finish = [shadow = status.ok() ? std::move(shadow_) : nullptr, call = call_, record = record_, status, stream = stream_, started = started_, explain = explain_] {
      if (record->ttft_ms == 0) record->ttft_ms = record->total_ms;
      if (status.ok()) call->services.explain->add(record);  // before the reply: the client may ask for it at once
      end(*call, *record, status, stream, started, explain);
      if (shadow) call->services.shadow->submit(shadow);
    };
    // The reply is built off the engine thread, which has other queries to serve.
    if (!call_->services.workers->post(finish)) finish();
  }

 private:
  static bool is_exact(const Plan& plan) {
    const auto strategy = find_strategy(plan.strategy);
    return strategy.ok() && strategy->same_as_recompute && plan.compress == "none" && plan.decode == "dense";
  }
  static void end(Call& call, const QueryRecord& r, const Status& status, bool stream, bool started, ExplainLevel explain);

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const bool stream_;
  const ExplainLevel explain_;
  std::shared_ptr<ShadowSample> shadow_;
  bool started_ = false;
};

std::vector<BlockChars> block_chars(Services& services, const QueryRecord& r);

void ReplySink::end(Call& call, const QueryRecord& r, const Status& status, bool stream, bool started, ExplainLevel explain) {
  const Services& services = call.services;
  const FateCounts& f = r.plan.fates;
  call.add_log("query", r.id);
  call.add_log("strategy", r.plan.strategy);
  call.add_log("fates", std::to_string(f.reused) + "/" + std::to_string(f.recomputed) + "/" + std::to_string(f.computed) + "/" + std::to_string(f.dropped));
  call.add_log("prompt_tokens", std::to_string(r.plan.prompt_tokens));
  call.add_log("completion_tokens", std::to_string(r.stats.completion_tokens));
  call.add_log("ttft_ms", std::to_string(std::llround(r.ttft_ms)));
  if (services.config()->log.texts) call.add_log("question", r.question);
  if (status.ok()) services.metrics->query_finished(r);
  call.charge_tokens(r.plan.prompt_tokens + r.stats.completion_tokens);
  if (!status.ok()) {
    const Problem p = engine_problem(status);
    if (!started) return call.fail(p);
    call.add_log("error_code", p.code);
    (void)call.event("error", problem_body(p, call.instance, call.request_id));
    return call.end_events();
  }
  json::object body = query_result_json(r, !stream);
  if (explain == ExplainLevel::kNone) body.erase("explain_url");
  if (explain == ExplainLevel::kBlocks) body["explain"] = explain_json(r, block_chars(call.services, r));
  if (stream) {
    (void)call.event("done", body);
    return call.end_events();
  }
  call.add_timing("queue", r.stats.queue_ms);
  call.add_timing("load", r.stats.load_ms);
  call.add_timing("prefill", r.stats.prefill_ms);
  call.add_timing("decode", r.stats.decode_ms);
  call.reply_json(200, body, {{"X-Cache", std::string(cache_header(r.plan))}});
}

/// Character ranges of the plan's blocks, where the document is still the one that was asked.
std::vector<BlockChars> block_chars(Services& services, const QueryRecord& r) {
  std::vector<BlockChars> out;
  for (const auto& d : r.documents) {
    std::vector<BlockInfo> blocks;
    if (!d.id.empty()) {
      const auto now = services.ingest->get(r.ns, d.id);
      if (now.ok() && now->content_hash == d.content_hash) {
        auto found = services.ingest->blocks(r.ns, d.id);
        if (found.ok()) blocks = std::move(*found);
      }
    }
    for (const auto& c : r.plan.contexts) {
      if (static_cast<std::size_t>(c.index) < d.first_context || static_cast<std::size_t>(c.index) >= d.first_context + d.num_contexts) continue;
      for (const auto& b : c.blocks) {
        BlockChars chars;
        for (const auto& i : blocks)
          if (i.chunk == c.chunk && i.token_begin == static_cast<std::uint64_t>(b.first_token) && i.char_begin && i.char_end) chars = {*i.char_begin, *i.char_end, true};
        out.push_back(chars);
      }
    }
  }
  return out;
}

Status add_inline_documents(Preparation& p, const PromptFormat& format) {
  for (std::size_t i = 0; i < p.body.documents.size(); ++i) {
    const auto& d = p.body.documents[i];
    auto tokens = format.document(d.title, d.text);
    if (!tokens.ok()) return tokens.status().with_field("documents[" + std::to_string(i) + "]");
    QueryDocument shown;
    shown.title = d.title;
    shown.content_hash = "sha256:" + sha256(d.text).hex();
    shown.first_context = p.request.contexts.size();
    shown.num_contexts = 1;
    p.record->documents.push_back(std::move(shown));
    QueryContext context;
    context.token_ids = std::move(tokens->ids);
    p.request.contexts.push_back(std::move(context));
  }
  return {};
}

void add_cached_documents(Preparation& p, std::vector<ResolvedDocument> documents) {
  for (auto& d : documents) {
    QueryDocument shown;
    shown.id = d.id;
    shown.title = d.title;
    shown.content_hash = d.content_hash;
    shown.miss = d.stale ? MissReason::kModelChanged : d.other_salt ? MissReason::kSaltMismatch : MissReason::kNone;
    shown.first_context = p.request.contexts.size();
    shown.num_contexts = d.contexts.size();
    p.record->documents.push_back(std::move(shown));
    for (auto& c : d.contexts) p.request.contexts.push_back(std::move(c));
  }
}

/// Prompt, sampling and cache options from the body.
Status build_request(Preparation& p) {
  Services& services = p.call->services;
  const PromptFormat& format = services.engine->prompt_format();
  const auto begun = SteadyClock::now();
  QueryRequest& q = p.request;
  q.id = p.record->id;
  // As ingest names them, or no key would match.
  q.tenant = services.ingest->tenant(p.call->ns);
  q.salt_digest = services.ingest->salt_digest(p.body.cache_salt);
  QUIRE_RETURN_IF_ERROR(add_inline_documents(p, format));
  std::optional<std::string_view> system;
  if (p.body.system) system = *p.body.system;
  QUIRE_ASSIGN_OR_RETURN(q.prefix_ids, format.prefix(system));
  if (p.body.query) {
    auto suffix = format.suffix(*p.body.query);
    if (!suffix.ok()) return suffix.status().with_field("query");
    q.suffix_ids = std::move(*suffix);
  } else {
    QUIRE_ASSIGN_OR_RETURN(q.suffix_ids, format.suffix(std::span<const ChatMessage>(p.body.messages)));
  }
  q.cache = p.body.cache;
  if (const bool untouched = !q.cache.keep_ratio && !q.cache.recompute_ratio && !q.cache.positions && q.cache.options.given().empty();
      q.cache.strategy == "auto" && untouched) {
    // A certificate speaks of default settings only; a request with settings of its own stays exact.
    FidelityGate::Verdict verdict = services.fidelity->verdict();
    q.certified_strategy = std::move(verdict.strategy);
    p.record->exact_note = std::move(verdict.note);
  }
  q.sampling = p.body.sampling;
  for (const auto& s : format.stop_strings()) q.sampling.stop.push_back(s);
  q.sampling.stop_token_ids = format.stop_ids();
  q.deadline = p.deadline;
  p.record->tokenize_ms = ms_since(begun);
  return {};
}

/// Waits for a plan that only the model can complete.
class PlanSink final : public QuerySink {
 public:
  explicit PlanSink(std::shared_ptr<Preparation> p) : p_(std::move(p)) {}

  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override { return false; }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats, FinishReason) override {
    p_->record->plan = plan;
    p_->record->stats = stats;
    auto reply = [p = p_, status] {
      if (!status.ok()) return p->call->fail(engine_problem(status));
      p->call->reply_json(200, plan_result_json(*p->record), {{"X-Cache", std::string(cache_header(p->record->plan))}});
    };
    if (!p_->call->services.workers->post(reply)) reply();
  }

 private:
  const std::shared_ptr<Preparation> p_;
};

/// The question is run over a few blocks of every document, as a query would begin; nothing is answered.
void complete_plan(const std::shared_ptr<Preparation>& p) {
  QueryRequest request = p->request;
  request.plan_only = true;
  auto handle = p->call->services.engine->query(std::move(request), std::make_shared<PlanSink>(p));
  if (!handle.ok()) return p->call->fail(engine_problem(handle.status()));
  p->call->exchange->on_disconnect([h = *handle]() mutable { h.cancel(); });
}

void start(std::shared_ptr<Preparation> p) {
  Call& call = *p->call;
  if (const auto s = build_request(*p); !s.ok()) return call.fail(engine_problem(s));
  Services& services = call.services;
  if (p->plan_only) {
    auto plan = services.engine->plan(p->request);
    if (!plan.ok()) return call.fail(engine_problem(plan.status()));
    p->record->plan = std::move(*plan);
    if (p->record->plan.selection_pending) return complete_plan(p);
    return call.reply_json(200, plan_result_json(*p->record), {{"X-Cache", std::string(cache_header(p->record->plan))}});
  }
  std::shared_ptr<ShadowSample> shadow;
  if (services.shadow) {
    services.shadow->yield();
    // Only greedy answers can be compared token by token.
    if (p->request.sampling.temperature <= 0 && services.shadow->draw(services.config()->policy.shadow_ratio)) {
      shadow = std::make_shared<ShadowSample>();
      shadow->request = p->request;
    }
  }
  auto sink = std::make_shared<ReplySink>(p->call, p->record, p->body.stream, p->body.explain, std::move(shadow));
  auto handle = services.engine->query(std::move(p->request), std::move(sink));
  if (!handle.ok()) return call.fail(engine_problem(handle.status()));
  call.exchange->on_disconnect([h = *handle]() mutable { h.cancel(); });
}

std::size_t index_of(const std::vector<std::string>& ids, const std::string& id) {
  return static_cast<std::size_t>(std::find(ids.begin(), ids.end(), id) - ids.begin());
}

json::array id_array(const std::vector<std::string>& ids) {
  json::array out;
  for (const auto& id : ids) out.emplace_back(id);
  return out;
}

Problem not_ready_problem(const Preparation& p, const NotReadyDocument& d) {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f", d.progress * 100);
  std::string detail = d.status == DocumentStatus::kFailed ? d.id + " could not be cached" + (d.error ? ": " + d.error->message : "") + "; post it again"
                                                           : d.id + " is at " + percent + "%";
  Problem problem = make_problem("document_not_ready", detail, "document_ids[" + std::to_string(index_of(p.body.document_ids, d.id)) + "]");
  problem.extra["document_ids"] = json::array{json::value(d.id)};
  if (!d.job_id.empty()) problem.extra["job_id"] = d.job_id;
  return problem;
}

void resolve(std::shared_ptr<Preparation> p, bool waited);

/// Comes back to resolve() when the documents are settled or the time is over.
void wait_for(std::shared_ptr<Preparation> p, const std::vector<NotReadyDocument>& documents) {
  struct Wait {
    std::atomic<bool> over{false};
    std::mutex mu;
    Subscription subscription;  // guarded by mu
  };
  auto wait = std::make_shared<Wait>();
  std::vector<std::string> ids;
  for (const auto& d : documents) ids.push_back(d.id);
  Services& services = p->call->services;
  const auto go_on = [p, wait, &services] {
    if (wait->over.exchange(true)) return;
    const auto next = [p, wait] {
      {
        Subscription dropped;
        std::lock_guard lock(wait->mu);
        dropped = std::exchange(wait->subscription, Subscription());
      }
      resolve(p, true);
    };
    if (!services.workers->post(next)) p->call->fail(make_problem("overloaded", "too many requests wait; try again"));
  };
  const auto timer = services.timers->at(p->deadline, go_on);
  auto subscription = services.ingest->when_settled(p->call->ns, ids, [go_on, timer, &services] {
    services.timers->cancel(timer);
    go_on();
  });
  std::lock_guard lock(wait->mu);
  if (!wait->over) wait->subscription = std::move(subscription);
}

void resolve(std::shared_ptr<Preparation> p, bool waited) {
  Call& call = *p->call;
  if (call.exchange->client_gone()) return;
  const auto begun = SteadyClock::now();
  ResolveOptions options;
  options.cache_salt = p->body.cache_salt;
  options.compute_pending = p->body.on_not_ready == OnNotReady::kCompute;
  options.touch = !p->plan_only;
  auto resolved = call.services.ingest->resolve(call.ns, p->body.document_ids, options);
  if (!resolved.ok()) return call.fail(ingest_problem(resolved.status()));
  p->record->resolve_ms += ms_since(begun);
  if (!resolved->missing.empty() && !p->body.skip_missing) {
    const auto& first = resolved->missing.front();
    Problem problem = make_problem("document_not_found", "there is no document '" + first.substr(0, 256) + "' in the namespace '" + call.ns + "'" +
                                       (resolved->missing.size() > 1 ? ", and " + std::to_string(resolved->missing.size() - 1) + " more are missing" : ""),
                                   "document_ids[" + std::to_string(index_of(p->body.document_ids, first)) + "]");
    problem.extra["document_ids"] = id_array(resolved->missing);
    return call.fail(problem);
  }
  if (!resolved->not_ready.empty()) {
    const auto& first = resolved->not_ready.front();
    const bool give_up = first.status == DocumentStatus::kFailed || p->body.on_not_ready != OnNotReady::kWait || p->plan_only ||
                         (waited && SteadyClock::now() >= p->deadline);
    if (give_up) return call.fail(not_ready_problem(*p, first));
    return wait_for(p, resolved->not_ready);
  }
  add_cached_documents(*p, std::move(resolved->documents));
  start(std::move(p));
}

void begin(std::shared_ptr<Call> call, bool plan_only) {
  const auto body = body_json(*call);
  if (!body) return;
  const auto config = call->services.config();
  auto p = std::make_shared<Preparation>();
  p->call = call;
  p->plan_only = plan_only;
  QueryDefaults defaults{config->policy.strategy, config->policy.compress, config->policy.decode, static_cast<std::size_t>(config->limits.documents_per_query)};
  if (failed(*call, read_query(*body, defaults, p->body))) return;
  const std::string& served = call->services.engine->info().model_name;
  if (!p->body.model.empty() && p->body.model != "default" && p->body.model != served)
    return call->fail(make_problem("model_not_found", "there is no model '" + p->body.model + "'; this service has '" + served + "'", "model"));
  p->deadline = call->start + std::chrono::milliseconds(p->body.timeout_ms);
  QueryRecord& r = *p->record;
  r.id = make_id("qry_");
  r.ns = call->ns;
  r.model = served;
  r.created_ms = unix_ms_now();
  if (config->explain.keep_text || config->log.texts) r.question = p->body.query ? *p->body.query : p->body.messages.back().content;
  resolve(std::move(p), false);
}

std::shared_ptr<const QueryRecord> find_record(Call& call) {
  const std::string id = call.path_param("id");
  auto record = call.services.explain->find(call.ns, id);
  if (!record) call.fail(make_problem("query_expired", "the query '" + id.substr(0, 128) + "' is not among the last " + std::to_string(call.services.config()->explain.retain) + " of the service", "id"));
  return record;
}

}  // namespace

namespace handlers {

void query(std::shared_ptr<Call> call) { begin(std::move(call), false); }
void query_plan(std::shared_ptr<Call> call) { begin(std::move(call), true); }

void list_queries(std::shared_ptr<Call> call) {
  const auto list = list_query(*call);
  if (!list) return;
  const auto page = call->services.explain->list(call->ns, list->after, static_cast<std::size_t>(list->limit), list->descending);
  if (!page.after_known) return call->fail(make_problem("query_expired", "the query 'after' names is no longer remembered; start again without it", "after"));
  const bool keep_text = call->services.config()->explain.keep_text;
  json::array data;
  for (const auto& r : page.records) data.push_back(query_entry_json(*r, keep_text));
  json::object o;
  o["object"] = "list";
  o["first_id"] = page.records.empty() ? json::value(nullptr) : json::value(page.records.front()->id);
  o["last_id"] = page.records.empty() ? json::value(nullptr) : json::value(page.records.back()->id);
  o["data"] = std::move(data);
  o["has_more"] = page.has_more;
  call->reply_json(200, o);
}

void get_query(std::shared_ptr<Call> call) {
  if (const auto r = find_record(*call)) call->reply_json(200, query_entry_json(*r, call->services.config()->explain.keep_text));
}

void explain_query(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {"include"})) return;
  const auto* include = call->request().param("include");
  if (include && *include != "text") return call->fail(make_problem("invalid_value", "include is '" + include->substr(0, 64) + "'; use text", "include"));
  const auto r = find_record(*call);
  if (!r) return;
  const auto chars = block_chars(call->services, *r);
  json::object o = explain_json(*r, chars);
  if (include) {
    json::array& blocks = o["blocks"].as_array();
    std::string id, text;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      json::object& b = blocks[i].as_object();
      b["text"] = nullptr;
      if (i >= chars.size() || !chars[i].known) continue;
      const std::string of(b["document_id"].as_string());
      if (of != id) {
        const auto content = call->services.ingest->content(call->ns, of);
        text = content.ok() ? *content : std::string();
        id = of;
      }
      std::size_t at = 0, from = std::string::npos, to = text.size();
      for (std::uint64_t n = 0; at <= text.size(); ++n) {
        if (n == chars[i].begin) from = at;
        if (n == chars[i].end) {
          to = at;
          break;
        }
        if (at == text.size()) break;
        do ++at;
        while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80);
      }
      if (from != std::string::npos && from <= to) b["text"] = text.substr(from, to - from);
    }
  }
  call->reply_json(200, o);
}

void not_supported(std::shared_ptr<Call> call) {
  call->fail(make_problem("not_supported", call->instance + " is not supported by this build" +
                                               (call->route->endpoint == "embeddings" ? ": it has no embedding model" : "; use POST /v1/query")));
}

}  // namespace handlers
}  // namespace quire
