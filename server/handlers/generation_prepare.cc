// From the body of a request to the engine's requests: documents are found, resolved and waited
// for, and prompts are built.
#include <algorithm>
#include <atomic>
#include <boost/json/array.hpp>
#include <cstdio>
#include <limits>
#include <mutex>
#include <utility>

#include "base/index.h"
#include "engine/plan/strategy.h"
#include "server/handlers/common.h"
#include "server/handlers/generation.h"
#include "server/handlers/prompt.h"
#include "server/support/affinity.h"
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
  const auto order = g.body.retrieve->order ? g.body.retrieve->order
                                            : found_order(call.services.config()->retrieve.order);
  if (order == FoundOrder::kBestLast) std::ranges::reverse(g.body.document_ids);
  return true;
}

/// Returns whether the strategy itself leaves out what does not fit the window.
bool leaves_out(const CacheOptions& cache) {
  const auto strategy = find_strategy(cache.strategy);
  return strategy.ok() && strategy->sparse;
}

/// Returns the error of a request whose found texts, all but the inline ones, have more than `most`
/// tokens each.
Status none_fits(const std::vector<QueryContext>& contexts, std::int64_t most) {
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (const QueryContext& c : contexts)
    if (!c.document_id.empty()) shortest = std::min(shortest, count_of(c.token_ids));
  return Status::invalid(
      "retrieve", "none of the texts that retrieve found fits into the " + std::to_string(most) +
                      " tokens that there are for them beside question and answer, and "
                      "within retrieve.max_tokens; the shortest has " +
                      std::to_string(shortest) +
                      "; allow more, post documents in smaller chunks, or send on_missing = "
                      "\"skip\" to be answered without documents");
}

/// Keeps of the documents' chunks those that the service chose. Where documents do not fit the
/// window beside the question and some room for the answer, their best chunks stay instead.
/// kInvalidArgument: the request asks for documents, and no chunk of those found fits.
Status fit_chunks(Generation& g, QueryRequest& q,
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
  if ((!chosen && !too_long) || room <= 0) return {};
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
    std::vector<QueryContext> contexts = q.contexts;
    keep_chunks(g.chosen.chunks, limits, contexts, documents);
    const bool none_left = std::ranges::all_of(documents, &std::string::empty, &QueryDocument::id);
    if (none_left && g.body.retrieve->asked && !g.body.skip_missing)
      return none_fits(q.contexts, limits.tokens);
    q.contexts = std::move(contexts);
    return {};
  }
  std::vector<std::string> ids;
  for (const QueryDocument& d : documents)
    if (!d.id.empty()) ids.push_back(d.id);
  // Without any stored document there is nothing to choose from, and the engine says what is wrong.
  if (ids.empty()) return {};
  std::vector<QueryContext> contexts = q.contexts;
  std::vector<QueryDocument> kept = documents;
  keep_chunks(rank_chunks(*g.call, question_text(g.body), ids), limits, contexts, kept);
  // The same where no chunk fits: an answer without the documents would look like one from them.
  if (std::ranges::all_of(kept, &std::string::empty, &QueryDocument::id)) return {};
  q.contexts = std::move(contexts);
  documents = std::move(kept);
  return {};
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
  q.ns = g.call->ns;
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
  if (!q.contexts.empty()) {
    QUIRE_RETURN_IF_ERROR(fit_chunks(g, q, questions));
  }
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

}  // namespace

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

}  // namespace quire
