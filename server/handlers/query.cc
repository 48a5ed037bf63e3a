#include <boost/json/array.hpp>

#include "base/index.h"
#include "engine/engine.h"
#include "server/handlers/common.h"
#include "server/handlers/generation.h"
#include "server/handlers/handlers.h"
#include "server/json/logprobs_json.h"
#include "server/json/query_request.h"
#include "server/reply/cache_reply.h"
#include "server/reply/explain_reply.h"
#include "server/reply/query_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Writes the one choice of a native query, as a whole or as named events.
class NativeReply final : public ReplyWriter {
 public:
  explicit NativeReply(const Generation& g)
      : call_(g.call),
        record_(g.records.front()),
        stream_(g.body.stream),
        wants_logprobs_(g.body.sampling.top_logprobs.has_value()),
        explain_(g.body.explain) {}

  void planned(std::size_t) override {
    if (!stream_) return;
    call_->start_events({{"X-Cache", std::string(cache_header(record_->plan))}});
    started_ = true;
    (void)call_->event("plan", plan_event_reply().json(*record_));
  }

  bool text(std::size_t, std::string_view text, std::vector<TokenLogprobs> logprobs) override {
    if (!stream_) {
      logprobs_.insert(logprobs_.end(), std::make_move_iterator(logprobs.begin()),
                       std::make_move_iterator(logprobs.end()));
      return true;
    }
    json::object delta;
    delta["text"] = text;
    if (wants_logprobs_) delta["logprobs"] = logprobs_object(logprobs);
    return call_->event("delta", delta);
  }

  bool tool_call(std::size_t, const ToolDelta& delta,
                 std::vector<TokenLogprobs> logprobs) override {
    if (!stream_) return text(0, {}, std::move(logprobs));
    json::object o{{"index", delta.index}};
    if (delta.begins) {
      o["id"] = delta.call->id;
      o["name"] = delta.call->name;
    }
    o["arguments"] = delta.arguments;
    if (wants_logprobs_) o["logprobs"] = logprobs_object(logprobs);
    return call_->event("tool_call", o);
  }

  void finished(std::size_t, const Status& status) override {
    Call& call = *call_;
    const QueryRecord& r = *record_;
    if (!status.ok()) {
      const Problem p = engine_problem(status, r, *call.model().engine);
      if (!started_) return call.fail(p);
      call.add_log("error_code", p.code);
      (void)call.event("error", problem_body(p, call.instance, call.request_id));
      return call.end_events();
    }
    QueryAnswer answer{.record = r, .explain_url = explain_ != ExplainLevel::kNone};
    if (wants_logprobs_ && !stream_) answer.logprobs = logprobs_object(logprobs_);
    if (explain_ == ExplainLevel::kBlocks)
      answer.explanation = explain_json(r, block_chars(call.services, r));
    if (stream_) {
      for (const auto& citation : citations_json(r)) (void)call.event("citation", citation);
      (void)call.event("done", query_end_reply().json(answer));
      return call.end_events();
    }
    call.add_timing("queue", r.stats.queue_ms);
    call.add_timing("load", r.stats.load_ms);
    call.add_timing("prefill", r.stats.prefill_ms);
    call.add_timing("decode", r.stats.decode_ms);
    call.reply_json(200, query_result_reply().json(answer),
                    {{"X-Cache", std::string(cache_header(r.plan))}});
  }

 private:
  json::object logprobs_object(const std::vector<TokenLogprobs>& logprobs) const {
    return json::object{{"content", logprobs_json(call_->model().engine->tokenizer(), logprobs)}};
  }

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const bool stream_, wants_logprobs_;
  const ExplainLevel explain_;
  std::vector<TokenLogprobs> logprobs_;
  bool started_ = false;
};

/// Waits for a plan that only the model can complete.
class PlanSink final : public QuerySink {
 public:
  explicit PlanSink(std::shared_ptr<Generation> g) : g_(std::move(g)) {}

  void on_plan(const Plan&) override {}
  bool on_token(std::int32_t, std::string_view) override { return false; }
  void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
               FinishReason) override {
    g_->first().plan = plan;
    g_->first().stats = stats;
    auto reply = [g = g_, status] {
      if (!status.ok())
        return g->call->fail(engine_problem(status, g->first(), *g->call->model().engine));
      g->call->reply_json(200, plan_result_json(g->first()),
                          {{"X-Cache", std::string(cache_header(g->first().plan))}});
    };
    if (!g_->call->services.workers->post_reply(reply)) reply();
  }

 private:
  const std::shared_ptr<Generation> g_;
};

/// Completes the plan: the question runs over a few blocks of every document, as at the start of a
/// query. No answer is generated.
void complete_plan(const std::shared_ptr<Generation>& g) {
  QueryRequest request = g->requests.front();
  request.plan_only = true;
  auto handle = g->call->model().engine->query(std::move(request), std::make_shared<PlanSink>(g));
  if (!handle.ok())
    return g->call->fail(engine_problem(handle.status(), g->first(), *g->call->model().engine));
  g->call->exchange->on_disconnect([h = *handle]() mutable { h.cancel(); });
}

void plan(std::shared_ptr<Generation> g) {
  Call& call = *g->call;
  auto planned = call.model().engine->plan(g->requests.front());
  if (!planned.ok()) return call.fail(engine_problem(planned.status(), g->first()));
  g->first().plan = std::move(*planned);
  if (g->first().plan.selection_pending || g->first().plan.prompt_pending) return complete_plan(g);
  call.reply_json(200, plan_result_json(g->first()),
                  {{"X-Cache", std::string(cache_header(g->first().plan))}});
}

void begin(std::shared_ptr<Call> call, void (*on_prepared)(std::shared_ptr<Generation>)) {
  const auto body = body_json(*call);
  if (!body) return;
  peek_model(*call, named_model(*body));
  auto g = std::make_shared<Generation>();
  g->call = call;
  if (failed(*call, read_query(*body, query_defaults(*call), g->body))) return;
  g->ready_by = g->deadline = call->start + std::chrono::milliseconds(g->body.timeout_ms);
  g->touches_documents = on_prepared != plan;
  g->on_prepared = on_prepared;
  prepare(std::move(g));
}

/// Returns the bytes of the text that hold these code points. None: the text ends before them.
std::optional<std::string> characters(const std::string& text, const BlockChars& chars) {
  std::size_t at = 0, from = std::string::npos, to = text.size();
  for (std::uint64_t n = 0; at <= text.size(); ++n) {
    if (n == chars.begin) from = at;
    if (n == chars.end) {
      to = at;
      break;
    }
    if (at == text.size()) break;
    do ++at;
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0u) == 0x80);
  }
  if (from == std::string::npos || from > to) return std::nullopt;
  return text.substr(from, to - from);
}

/// Returns the text of each block of the plan in order. None: it is not known any more.
std::vector<std::optional<std::string>> block_texts(Services& services, const QueryRecord& r,
                                                    const std::vector<BlockChars>& chars) {
  std::vector<std::optional<std::string>> out;
  std::string id, text;
  for (const PlannedContext& c : r.plan.contexts)
    for (std::size_t b = 0; b < c.blocks.size(); ++b) {
      const std::size_t i = out.size();
      out.emplace_back();
      if (i >= chars.size() || !chars[i].known) continue;
      if (c.document_id != id) {
        const auto content = services.ingest->documents().content(r.ns, c.document_id);
        text = content.ok() ? *content : std::string();
        id = c.document_id;
      }
      out.back() = characters(text, chars[i]);
    }
  return out;
}

std::shared_ptr<const QueryRecord> find_record(Call& call) {
  const std::string id = call.path_param("id");
  auto record = call.services.explain->find(call.ns, id);
  if (!record)
    call.fail(make_problem("query_expired",
                           "the query '" + id.substr(0, 128) + "' is not among the last " +
                               std::to_string(call.services.config()->explain.retain) +
                               " of the service",
                           "id"));
  return record;
}

}  // namespace

namespace handlers {

void query(std::shared_ptr<Call> call) {
  begin(std::move(call),
        [](std::shared_ptr<Generation> g) { run_choices(*g, std::make_shared<NativeReply>(*g)); });
}

void query_plan(std::shared_ptr<Call> call) { begin(std::move(call), plan); }

void list_queries(std::shared_ptr<Call> call) {
  const auto list = list_query(*call);
  if (!list) return;
  const auto page = call->services.explain->list(call->ns, list->after, to_size(list->limit),
                                                 list->descending);
  if (!page.after_known)
    return call->fail(make_problem(
        "query_expired", "the query 'after' names is no longer remembered; start again without it",
        "after"));
  const bool keep_text = call->services.config()->explain.keep_text;
  json::array data;
  for (const auto& r : page.records) data.push_back(query_entry_reply().json({*r, keep_text}));
  json::object o;
  o["object"] = "list";
  o["first_id"] = page.records.empty() ? json::value(nullptr)
                                       : json::value(page.records.front()->id);
  o["last_id"] = page.records.empty() ? json::value(nullptr) : json::value(page.records.back()->id);
  o["data"] = std::move(data);
  o["has_more"] = page.has_more;
  call->reply_json(200, o);
}

void get_query(std::shared_ptr<Call> call) {
  if (const auto r = find_record(*call))
    call->reply_json(200,
                     query_entry_reply().json({*r, call->services.config()->explain.keep_text}));
}

void explain_query(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {"include"})) return;
  const auto* include = call->request().param("include");
  if (include && *include != "text")
    return call->fail(make_problem(
        "invalid_value", "include is '" + include->substr(0, 64) + "'; use text", "include"));
  const auto r = find_record(*call);
  if (!r) return;
  const auto chars = block_chars(call->services, *r);
  std::vector<std::optional<std::string>> texts;
  if (include) texts = block_texts(call->services, *r, chars);
  call->reply_json(200, explanation_reply().json({*r, chars, texts}));
}

}  // namespace handlers
}  // namespace quire
