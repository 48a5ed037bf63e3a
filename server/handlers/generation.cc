// Runs the choices of a request on the engine, and tells what they were made of.
#include "server/handlers/generation.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "engine/chat/tool_parser.h"
#include "engine/plan/strategy.h"
#include "server/handlers/common.h"
#include "server/handlers/prompt.h"
#include "server/json/logprobs_json.h"
#include "server/service/citations.h"
#include "server/service/tracer.h"
#include "server/support/affinity.h"
#include "server/support/late_contexts.h"
#include "server/support/request_id.h"

namespace quire {
namespace {

/// Cancels every choice of a request; choices added later are cancelled at once.
class Choices {
 public:
  void add(QueryHandle handle) {
    std::lock_guard lock(mu_);
    if (cancelled_) handle.cancel();
    handles_.push_back(std::move(handle));
  }
  void cancel() {
    std::lock_guard lock(mu_);
    cancelled_ = true;
    for (QueryHandle& h : handles_) h.cancel();
  }

 private:
  std::mutex mu_;
  bool cancelled_ = false;            // guarded by mu_
  std::vector<QueryHandle> handles_;  // guarded by mu_
};

/// An answer that may serve as evidence: its request and the tokens it consists of.
struct EvidenceSample {
  QueryRequest request;
  std::vector<std::int32_t> answer;
};

/// Receives one choice's events, updates its record and passes events to the writer.
class ChoiceSink final : public QuerySink {
 public:
  /// `citations` is null if they are not wanted. `shadow` is filled, and checked if the strategy
  /// turns out to be an approximation; `evidence` is filled, and taken if it turns out to be exact.
  /// `late` is computed after the answer. All three may be null. `continues`: as in
  /// SamplingOptions.
  ChoiceSink(std::shared_ptr<Call> call, std::shared_ptr<QueryRecord> record, std::size_t choice,
             std::shared_ptr<ReplyWriter> writer, std::shared_ptr<Choices> all,
             std::shared_ptr<CitationCollector> citations, std::shared_ptr<ShadowSample> shadow,
             std::shared_ptr<EvidenceSample> evidence, std::shared_ptr<LateContexts> late,
             const std::optional<ToolUse>& tools, bool continues)
      : call_(std::move(call)),
        record_(std::move(record)),
        choice_(choice),
        writer_(std::move(writer)),
        all_(std::move(all)),
        citations_(std::move(citations)),
        shadow_(std::move(shadow)),
        evidence_(std::move(evidence)),
        late_(std::move(late)),
        logprobs_(call_->model().engine->tokenizer(), continues) {
    if (tools) {
      style_ = call_->model().engine->prompt_format().tool_style();
      parser_.emplace(style_, tool_names(*tools), tools->parallel ? kMaxCalls : 1, tools->choice);
    }
  }

  void on_plan(const Plan& plan) override {
    record_->plan = plan;
    if (shadow_ && is_exact(plan)) shadow_.reset();
    if (evidence_ && !is_exact(plan)) evidence_.reset();
    writer_->planned(choice_);
  }

  bool wants_logits() const override { return shadow_ != nullptr; }
  void on_logits(std::span<const float> logits) override { shadow_->add(logits); }
  void on_logprobs(const TokenLogprobs& logprobs) override { logprobs_.add(logprobs); }

  bool on_token(std::int32_t id, std::string_view text) override {
    if (evidence_) evidence_->answer.push_back(id);
    record_->token_ms.push_back(call_->elapsed_ms());
    if (record_->ttft_ms == 0) record_->ttft_ms = record_->token_ms.back();
    written_ += text.size();
    std::vector<ToolEvent> events;
    if (parser_)
      parser_->push(text, events);
    else
      record_->answer.append(text);
    const bool listens = !parser_ || deliver(events);
    if (citations_) citations_->on_token(record_->answer.size());
    if (call_->exchange->client_gone() || !listens) return false;
    return parser_ || text.empty() || writer_->text(choice_, text, logprobs_.take(written_));
  }

  void on_attribution(const Attribution& attribution) override {
    if (citations_) citations_->on_attribution(attribution);
  }

  void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
               FinishReason reason) override {
    if (parser_ && status.ok()) {
      std::vector<ToolEvent> events;
      parser_->finish(events);
      (void)deliver(events);
    }
    if (status.ok()) {
      auto rest = logprobs_.finish(written_, !stats.stop_text.empty());
      if (!rest.empty()) (void)writer_->text(choice_, {}, std::move(rest));
    }
    record_->plan = plan;
    record_->stats = stats;
    record_->finish_reason = finish_reason_name(reason);
    if (reason == FinishReason::kStop && !record_->tool_calls.empty())
      record_->finish_reason = "tool_calls";
    record_->total_ms = call_->elapsed_ms();
    record_->finished = status.ok();
    if (shadow_) shadow_->strategy = plan.strategy;
    auto finish = [shadow = status.ok() ? std::move(shadow_) : nullptr,
                   evidence = status.ok() ? std::move(evidence_) : nullptr,
                   late = status.ok() ? std::move(late_) : nullptr, call = call_, record = record_,
                   status, writer = writer_, all = all_, choice = choice_, citations = citations_] {
      if (status.ok() && citations) citations->make(call->services, *record);
      if (record->ttft_ms == 0) record->ttft_ms = record->total_ms;
      // This comes before the reply, because the client may ask for it at once.
      if (status.ok())
        call->services.explain->add(record);
      else
        all->cancel();
      account(*call, *record, status, choice);
      writer->finished(choice, status);
      if (late)
        late->compute(*call->model().engine, *call->services.store, *call->services.workers,
                      call->services.late_pause);
      if (shadow) call->model().shadow->submit(shadow);
      if (evidence)
        call->model().evidence->submit(std::move(evidence->request), std::move(evidence->answer));
    };
    // The reply is built off the engine thread, which has other queries to serve.
    if (!call_->services.workers->post_reply(finish)) finish();
  }

 private:
  static constexpr std::size_t kMaxCalls = 128;

  /// Adds what the parser found to the record, and passes it on. False: the client is gone.
  bool deliver(const std::vector<ToolEvent>& events) {
    bool listens = true;
    for (const ToolEvent& e : events) {
      auto logprobs = logprobs_.take(written_);
      if (e.kind == ToolEvent::Kind::kText) {
        record_->answer += e.text;
        listens = listens && writer_->text(choice_, e.text, std::move(logprobs));
        continue;
      }
      ToolDelta delta{.index = e.index, .begins = e.kind == ToolEvent::Kind::kCall};
      if (delta.begins)
        record_->tool_calls.push_back({new_call_id(), e.text, {}});
      else
        record_->tool_calls[e.index].arguments += e.text;
      delta.call = &record_->tool_calls[e.index];
      if (!delta.begins) delta.arguments = e.text;
      listens = listens && writer_->tool_call(choice_, delta, std::move(logprobs));
    }
    return listens;
  }

  std::string new_call_id() const {
    if (style_ != ToolStyle::kMistral) return make_id("call_");
    // Mistral's templates take nine letters and digits, no more.
    const std::string id = make_id("");
    return id.substr(id.size() - std::min<std::size_t>(id.size(), 9));
  }

  static bool is_exact(const Plan& plan) {
    const auto strategy = find_strategy(plan.strategy);
    return strategy.ok() && strategy->same_as_recompute && plan.compress == "none" &&
           plan.decode == "dense" && !(plan.prompt_cut && plan.prompt_cut->removed_tokens > 0);
  }

  /// Returns a digest and the tokens of each context, as server/capacity/trace.h reads them. Equal
  /// contexts of one namespace and salt have one digest; no text can be read from it.
  static std::string contexts_text(const Plan& plan) {
    constexpr std::size_t kDigestBytes = 8;
    std::string out;
    for (const PlannedContext& c : plan.contexts) {
      if (c.duplicate || c.blocks.empty()) continue;
      if (!out.empty()) out += ' ';
      char two[3];
      // The key of the last block covers all before it.
      for (std::size_t i = 0; i < kDigestBytes; ++i) {
        std::snprintf(two, sizeof two, "%02x", static_cast<unsigned>(c.blocks.back().id[i]));
        out += two;
      }
      out += ':' + std::to_string(c.num_tokens);
    }
    return out.empty() ? "none" : out;
  }

  static std::vector<std::string> document_ids(const QueryRecord& r) {
    std::vector<std::string> out;
    for (const QueryDocument& d : r.documents)
      if (!d.id.empty()) out.push_back(d.id);
    return out;
  }

  /// Adds log fields for the first choice, and metrics and the key's tokens for every one.
  static void account(Call& call, const QueryRecord& r, const Status& status, std::size_t choice) {
    if (status.ok()) call.services.metrics->query_finished(r);
    call.charge_tokens(r.plan.prompt_tokens + r.stats.completion_tokens);
    if (call.trace) call.services.tracer->add_query(*call.trace, r);
    if (choice != 0) return;
    const FateCounts& f = r.plan.fates;
    call.add_log("query", r.id);
    call.add_log("strategy", r.plan.strategy);
    call.add_log("fates", std::to_string(f.reused) + "/" + std::to_string(f.recomputed) + "/" +
                              std::to_string(f.computed) + "/" + std::to_string(f.dropped));
    call.add_log("prompt_tokens", std::to_string(r.plan.prompt_tokens));
    call.add_log("completion_tokens", std::to_string(r.stats.completion_tokens));
    call.add_log("ttft_ms", std::to_string(std::llround(r.ttft_ms)));
    if (call.services.config()->log.contexts) {
      call.add_log("contexts", contexts_text(r.plan));
      call.add_log("affinity", affinity_of(r.ns, document_ids(r)));
    }
    if (call.services.config()->log.texts) call.add_log("question", r.question);
  }

  const std::shared_ptr<Call> call_;
  const std::shared_ptr<QueryRecord> record_;
  const std::size_t choice_;
  const std::shared_ptr<ReplyWriter> writer_;
  const std::shared_ptr<Choices> all_;
  const std::shared_ptr<CitationCollector> citations_;
  std::shared_ptr<ShadowSample> shadow_;
  std::shared_ptr<EvidenceSample> evidence_;
  std::shared_ptr<LateContexts> late_;
  AnswerLogprobs logprobs_;
  std::size_t written_ = 0;  ///< bytes of the answer, calls included
  ToolStyle style_ = ToolStyle::kHermes;
  std::optional<ToolParser> parser_;  ///< set if the answer may call tools
};

/// Returns whether the answer is the likeliest token at every step. Only such answers can be
/// compared token by token.
bool is_greedy(const SamplingOptions& o) {
  return o.temperature <= 0 && o.frequency_penalty == 0 && o.presence_penalty == 0 &&
         o.repetition_penalty == 1 && o.logit_bias.empty() && o.allowed_tokens.empty() &&
         o.min_tokens == 0 && !o.grammar;
}

std::shared_ptr<ShadowSample> shadow_of(const Call& call, const QueryRequest& request) {
  ShadowChecker* const shadows = call.model().shadow;
  if (!shadows || !is_greedy(request.sampling) ||
      !shadows->draw(call.services.config()->policy.shadow_ratio))
    return nullptr;
  auto shadow = std::make_shared<ShadowSample>();
  shadow->request = request;
  shadow->request.attribute = false;
  return shadow;
}

/// Returns what an exact answer of this request is kept in as evidence; null: it is not wanted.
std::shared_ptr<EvidenceSample> evidence_of(const Call& call, const QueryRequest& request) {
  EvidenceCollector* const collector = call.model().evidence;
  if (!collector || request.contexts.empty() || request.cache.strategy != "auto" ||
      request.plan_only || !is_greedy(request.sampling) || !collector->wants_query())
    return nullptr;
  auto evidence = std::make_shared<EvidenceSample>();
  evidence->request = request;
  return evidence;
}

std::shared_ptr<CitationCollector> collector_of(const Generation& g, const QueryRequest& request) {
  if (!request.attribute) return nullptr;
  std::vector<InlineText> texts;
  for (const auto& d : g.body.documents) texts.push_back({d.title, d.text});
  auto format = prompt_format(g.body, *g.call->model().engine, g.call->ns);
  if (!format.ok()) return nullptr;  // the prompt was made with it, so it is fine
  const CitationConfidence confidence = g.call->model().engine->info().citation_confidence.value_or(
      fitted_confidence());
  return std::make_shared<CitationCollector>(std::move(*format), confidence, question_text(g.body),
                                             std::move(texts));
}

}  // namespace

Problem engine_problem(const Status& status, const QueryRecord& record) {
  if (auto p = window_problem(
          status, "the prompt with one token of the answer",
          record.documents.empty()
              ? "send a shorter one"
              : "ask over fewer or shorter documents, or send a shorter question"))
    return *p;
  if (status.code() == Code::kInternal || status.code() == Code::kCorruption)
    log_error("a query failed", {{"reason", status.to_string()}});
  if (status.code() == Code::kDeadlineExceeded)
    return make_problem(
        "deadline_exceeded",
        "the query was not finished within timeout_ms (600000 if it is not given); ask "
        "for fewer tokens, stream the answer, or allow more time",
        "timeout_ms");
  return problem_of(status);
}

Problem engine_problem(const Status& status, const QueryRecord& record, const Engine& engine) {
  constexpr std::int64_t kShortestMs = 1000, kLongestMs = 60'000;
  Problem p = engine_problem(status, record);
  if (p.code == "overloaded")
    p.retry_after_ms = std::clamp<std::int64_t>(engine.load().expected_wait.count(), kShortestMs,
                                                kLongestMs);
  return p;
}

Problem answer_problem(const Status& status, const QueryRecord& record, const Engine& engine) {
  if (status.code() != Code::kDeadlineExceeded) return engine_problem(status, record, engine);
  return make_problem("deadline_exceeded",
                      "the answer was not finished within the " +
                          std::to_string(kAnswerTime.count()) +
                          " minutes that it may take here; ask for fewer tokens, or by POST "
                          "/v1/query, which takes timeout_ms");
}

std::vector<BlockChars> block_chars(Services& services, const QueryRecord& r) {
  std::vector<BlockChars> out;
  const ServedModel model = find_model(services, r.model).value_or(own_model(services));
  for (const auto& d : r.documents) {
    std::vector<BlockInfo> blocks;
    if (!d.id.empty() && is_as_read(services, r.ns, d)) {
      auto found = model.blocks(r.ns, d.id);
      if (found.ok() && is_as_read(services, r.ns, d)) blocks = std::move(*found);
    }
    for (const auto& c : r.plan.contexts) {
      if (static_cast<std::size_t>(c.index) < d.first_context ||
          static_cast<std::size_t>(c.index) >= d.first_context + d.num_contexts)
        continue;
      for (const auto& b : c.blocks) {
        BlockChars chars;
        for (const auto& i : blocks)
          if (i.chunk == c.chunk && i.token_begin == static_cast<std::uint64_t>(b.first_token) &&
              i.char_begin && i.char_end)
            chars = {*i.char_begin, *i.char_end, true};
        out.push_back(chars);
      }
    }
  }
  return out;
}

void run_choices(Generation& g, std::shared_ptr<ReplyWriter> writer) {
  stop_idle_work(g.call->services);  // it may have begun while this question waited
  auto all = std::make_shared<Choices>();
  g.call->exchange->on_disconnect([all] { all->cancel(); });
  for (std::size_t i = 0; i < g.requests.size(); ++i) {
    auto shadow = i == 0 ? shadow_of(*g.call, g.requests[i]) : nullptr;
    auto evidence = i == 0 ? evidence_of(*g.call, g.requests[i]) : nullptr;
    Store* const store = g.call->services.store;
    auto late = i == 0 && g.touches_documents && store != nullptr
                    ? LateContexts::of(g.requests[i], *store, *g.call->services.late_pause)
                    : nullptr;
    auto sink = std::make_shared<ChoiceSink>(
        g.call, g.records[i], i, writer, all, collector_of(g, g.requests[i]), std::move(shadow),
        std::move(evidence), std::move(late), g.body.tools, g.requests[i].sampling.continues);
    auto handle = g.call->model().engine->query(std::move(g.requests[i]), std::move(sink));
    if (handle.ok()) {
      all->add(std::move(*handle));
      continue;
    }
    all->cancel();
    return writer->finished(i, handle.status());
  }
}

}  // namespace quire
