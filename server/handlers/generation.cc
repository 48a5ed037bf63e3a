#include "server/handlers/generation.h"

#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/format/key.h"
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
namespace json = boost::json;
namespace {

using SteadyClock = std::chrono::steady_clock;

/// How often it is looked whether another replica has read a document.
constexpr std::chrono::milliseconds kAskAgain{100};

double ms_since(SteadyClock::time_point t) {
  return std::chrono::duration<double, std::milli>(SteadyClock::now() - t).count();
}

std::size_t index_of(const std::vector<std::string>& ids, const std::string& id) {
  return to_size(std::find(ids.begin(), ids.end(), id) - ids.begin());
}

/// Returns the document's name in the request: "document_ids[1]".
std::string param_of(const QueryBody& body, const std::string& id) {
  const std::size_t i = index_of(body.document_ids, id);
  return i < body.document_params.size() ? body.document_params[i] : "document_ids";
}

Problem not_ready_problem(const Generation& g, const NotReadyDocument& d) {
  char percent[16];
  std::snprintf(percent, sizeof percent, "%.0f", d.progress * 100);
  std::string detail = d.status == DocumentStatus::kFailed
                           ? d.id + " could not be cached" +
                                 (d.error ? ": " + d.error->message : "") + "; post it again"
                           : d.id + " is at " + percent + "%";
  Problem problem = make_problem("document_not_ready", detail, param_of(g.body, d.id));
  problem.extra["document_ids"] = json::array{json::value(d.id)};
  if (!d.job_id.empty()) problem.extra["job_id"] = d.job_id;
  return problem;
}

/// Chooses the best documents for the question of a request that names none. Returns false if the
/// call was failed.
bool choose(Generation& g) {
  Call& call = *g.call;
  if (!g.body.retrieve || (!call.services.retrieval && !g.body.retrieve->asked)) return true;
  if (!g.body.skip_missing) {
    const auto missing = missing_ids(call, g.body.document_ids);
    if (!missing.empty()) {
      call.fail(missing_documents(call.ns, missing, param_of(g.body, missing.front())));
      return false;
    }
  }
  if (const auto problem = choose_documents(call, question_text(g.body), *g.body.retrieve,
                                            g.body.document_ids, g.chosen)) {
    call.fail(*problem);
    return false;
  }
  if (g.chosen.documents.empty() && g.body.retrieve->asked && !g.body.skip_missing) {
    call.fail(make_problem(
        "document_not_found",
        "no document of the namespace '" + call.ns +
            "' that retrieve allows has a word of the question; leave retrieve out or send "
            "on_missing = \"skip\" to be answered without documents",
        "retrieve"));
    return false;
  }
  g.body.document_ids.clear();
  g.body.document_params.clear();
  for (const auto& c : g.chosen.documents) g.body.document_ids.push_back(c.id);
  return true;
}

/// Returns whether the strategy itself leaves out what does not fit the window.
bool leaves_out(const CacheOptions& cache) {
  const auto strategy = find_strategy(cache.strategy);
  return strategy.ok() && strategy->sparse;
}

/// Keeps of the documents' chunks those that the service chose. Where documents do not fit the
/// window beside the question and some room for the answer, their best chunks stay instead.
void fit_chunks(Generation& g, QueryRequest& q,
                const std::vector<std::vector<std::int32_t>>& questions) {
  auto& documents = g.first().documents;
  for (QueryDocument& d : documents) {
    const auto chosen = std::ranges::find(g.chosen.documents, d.id, &ChosenDocument::id);
    if (!d.id.empty() && chosen != g.chosen.documents.end()) d.score = chosen->score;
  }
  std::int64_t longest = 0, tokens = 0;
  for (const auto& question : questions) longest = std::max(longest, count_of(question));
  for (const auto& c : q.contexts) tokens += count_of(c.token_ids);
  const std::int64_t window = g.call->model().engine->info().max_model_len;
  const std::int64_t beside = window - count_of(q.prefix_ids) - longest;
  const bool chosen = !g.chosen.chunks.empty();
  // A strategy that leaves out blocks gets whole documents where these are named.
  const bool found = !g.chosen.documents.empty();
  const bool too_long = tokens + 1 > beside && (found || !leaves_out(q.cache));
  const std::int64_t room = beside - std::min<std::int64_t>(q.sampling.max_tokens, window / 4);
  if ((!chosen && !too_long) || room <= 0) return;
  ChunkLimits limits;
  limits.tokens = std::min(room, g.body.retrieve.value_or(QueryRetrieval()).max_tokens);
  if (chosen) {
    const bool bare = g.body.retrieve->unit == QueryUnit::kChunk;
    limits.neighbours = static_cast<std::int32_t>(
        g.body.retrieve->neighbours.value_or(bare ? 0 : 1));
    if (bare) limits.whole_document_tokens = 0;
    // A document may have got another version while the query waited for it.
    replace_outdated(
        documents,
        [&g](const std::vector<std::string>& ids) {
          return rank_chunks(*g.call, question_text(g.body), ids);
        },
        g.chosen.chunks);
    return keep_chunks(g.chosen.chunks, limits, q.contexts, documents);
  }
  std::vector<std::string> ids;
  for (const QueryDocument& d : documents)
    if (!d.id.empty()) ids.push_back(d.id);
  // Without any stored document there is nothing to choose from, and the engine says what is wrong.
  if (ids.empty()) return;
  std::vector<QueryContext> contexts = q.contexts;
  std::vector<QueryDocument> kept = documents;
  keep_chunks(rank_chunks(*g.call, question_text(g.body), ids), limits, contexts, kept);
  // The same where no chunk fits: an answer without the documents would look like one from them.
  if (std::ranges::all_of(kept, &std::string::empty, &QueryDocument::id)) return;
  q.contexts = std::move(contexts);
  documents = std::move(kept);
}

/// Enters what `auto` may use for the request's documents. Evidence covers its own settings only; a
/// request with other ones stays exact.
void ask_gate(const FidelityGate& gate, QueryRequest& q, QueryRecord& r) {
  const bool untouched = !q.cache.keep_ratio && !q.cache.recompute_ratio && !q.cache.positions &&
                         q.cache.options.given().empty() && q.cache.prompt_compression == "none";
  if (q.cache.strategy != "auto" || !untouched) return;
  FidelityGate::Verdict verdict = gate.verdict(readings_of(q.contexts));
  q.certified = std::move(verdict.certified);
  q.not_certified = std::move(verdict.because);
  r.exact_note = std::move(verdict.note);
}

/// Builds the engine's requests; those of the other choices are copies of the first.
Status build_requests(Generation& g, std::vector<ResolvedDocument> documents) {
  Services& services = g.call->services;
  const ServedModel model = g.call->model();
  const auto begun = SteadyClock::now();
  QueryRequest& q = g.requests.emplace_back();
  QueryRecord& r = g.first();
  q.id = r.id;
  // The names must be those of ingest, or no key would match.
  q.tenant = services.ingest->tenant(g.call->ns);
  q.salt_digest = services.ingest->salt_digest(g.body.cache_salt);
  q.cache = g.body.cache;
  q.sampling = g.body.sampling;  // the engine adds the other stop tokens of its model
  q.deadline = g.deadline;
  QUIRE_ASSIGN_OR_RETURN(const PromptFormat format,
                         prompt_format(g.body, *model.engine, g.call->ns));
  r.wording = format.wording();
  r.citation_style = services.citation_styles.of(g.call->ns);
  if (g.body.citation_style) {
    QUIRE_ASSIGN_OR_RETURN(r.citation_style, CitationStyle::parse(*g.body.citation_style));
  }
  if (!g.body.citations) r.citation_style = {};
  name_fields(g.body, q);
  QUIRE_RETURN_IF_ERROR(add_documents(g.body, format, std::move(documents), q, r.documents));
  std::vector<std::vector<std::int32_t>> questions;
  QUIRE_RETURN_IF_ERROR(build_prompt(g.body, *model.engine, format, q, questions));
  QUIRE_RETURN_IF_ERROR(constrain_calls(g.body, *model.engine, q.sampling));
  if (!q.contexts.empty()) fit_chunks(g, q, questions);
  ask_gate(*model.fidelity, q, r);
  q.attribute = g.body.citations && !q.contexts.empty();
  r.tokenize_ms = ms_since(begun);
  const std::size_t choices = questions.size() * to_size(g.samples);
  for (std::size_t i = 1; i < choices; ++i) {
    g.requests.push_back(g.requests.front());
    g.records.push_back(std::make_shared<QueryRecord>(r));
    g.requests.back().id = g.records.back()->id = r.id + "-" + std::to_string(i);
    // Each choice samples with its own random numbers, all fixed by the seed.
    if (auto& seed = g.requests.back().sampling.seed) *seed += i;
  }
  for (std::size_t i = 0; i < choices; ++i) {
    const std::size_t prompt = i / at(g.samples);
    g.requests[i].suffix_ids = questions[prompt];
    if (!g.body.prompts.empty()) g.requests[i].question_param = g.body.prompts[prompt].param;
  }
  return {};
}

void resolve(std::shared_ptr<Generation> g, bool waited);

/// Calls resolve() again when the documents are settled or the time is over.
void wait_for(std::shared_ptr<Generation> g, const std::vector<NotReadyDocument>& documents) {
  struct Wait {
    std::atomic<bool> over{false};
    std::atomic<bool> subscribing{true};
    std::mutex mu;
    Subscription subscription;  // guarded by mu
  };
  auto wait = std::make_shared<Wait>();
  std::vector<std::string> ids;
  for (const auto& d : documents) ids.push_back(d.id);
  Services& services = g->call->services;
  const auto go_on = [g, wait, &services] {
    if (wait->over.exchange(true)) return;
    const auto next = [g, wait] {
      {
        Subscription dropped;
        std::lock_guard lock(wait->mu);
        dropped = std::exchange(wait->subscription, Subscription());
      }
      resolve(g, true);
    };
    if (!services.workers->post(next))
      g->call->fail(make_problem("overloaded", "too many requests wait; try again"));
  };
  const auto timer = services.timers->at(g->ready_by, go_on);
  auto subscription = services.ingest->jobs().when_synchronized(
      g->call->ns, ids, [g, wait, go_on, timer, &services] {
        services.timers->cancel(timer);
        if (!wait->subscribing) return go_on();
        // No job here works on them: another replica does.
        services.timers->at(std::min(g->ready_by, SteadyClock::now() + kAskAgain), go_on);
      });
  wait->subscribing = false;
  std::lock_guard lock(wait->mu);
  if (!wait->over) wait->subscription = std::move(subscription);
}

void resolve(std::shared_ptr<Generation> g, bool waited) {
  Call& call = *g->call;
  if (call.exchange->client_gone()) return;
  const auto begun = SteadyClock::now();
  ResolveOptions options;
  options.cache_salt = g->body.cache_salt;
  options.compute_pending = g->body.on_not_ready == OnNotReady::kCompute;
  options.touch = g->touches_documents;
  auto resolved = call.model().resolve(call.ns, g->body.document_ids, options);
  if (!resolved.ok()) return call.fail(ingest_problem(resolved.status()));
  g->first().resolve_ms += ms_since(begun);
  // If retrieval found a document that has gone since, the caller made no mistake.
  if (!resolved->missing.empty() && !g->body.skip_missing && g->chosen.documents.empty())
    return call.fail(missing_documents(call.ns, resolved->missing,
                                       param_of(g->body, resolved->missing.front())));
  if (!resolved->not_ready.empty()) {
    const auto& first = resolved->not_ready.front();
    const bool give_up = first.status == DocumentStatus::kFailed ||
                         g->body.on_not_ready != OnNotReady::kWait || !g->touches_documents ||
                         (waited && SteadyClock::now() >= g->ready_by);
    if (give_up) return call.fail(not_ready_problem(*g, first));
    return wait_for(g, resolved->not_ready);
  }
  if (const auto s = build_requests(*g, std::move(resolved->documents)); !s.ok()) {
    const bool unsupported = s.code() == Code::kUnimplemented &&
                             (s.field() == "stop" || s.field().starts_with("tools"));
    return call.fail(unsupported ? problem_of(s, "unsupported_parameter")
                                 : engine_problem(s, g->first()));
  }
  g->on_prepared(g);
}

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
      parser_.emplace(style_, tool_names(*tools), tools->parallel ? kMaxCalls : 1);
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
          record.documents.empty() ? "send a shorter one" : "ask over fewer or shorter documents"))
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

void prepare(std::shared_ptr<Generation> g) {
  Call& call = *g->call;
  const auto config = call.services.config();
  if (!choose_model(call, g->body.model)) return;
  if (const auto problem = check_lengths(g->body, *call.model().engine)) return call.fail(*problem);
  auto record = std::make_shared<QueryRecord>();
  record->id = make_id("qry_");
  record->ns = call.ns;
  record->model = call.model().name();
  record->created_ms = unix_ms_now();
  if (config->explain.keep_text || config->log.texts) record->question = question_text(g->body);
  g->records.push_back(std::move(record));
  // A balancer routes by the documents that a request names; of a request that names none, the
  // reply tells what the service chose, for the questions that follow.
  const std::string named = affinity_of(call.ns, g->body.document_ids);
  call.set_affinity(named);
  if (!choose(*g)) return;
  if (named.empty()) call.set_affinity(affinity_of(call.ns, g->body.document_ids));
  resolve(std::move(g), false);
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
