#include "fidelity/runner.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/index.h"
#include "engine/answer/cited_blocks.h"
#include "engine/answer/word_support.h"
#include "engine/chat/question_words.h"
#include "fidelity/answer_sink.h"
#include "fidelity/score.h"

namespace quire {
namespace {

using Answer = std::shared_ptr<AnswerSink>;

/// Returns the attended share of the (document token, layer) pairs.
double sequence_ratio(const Plan& plan) {
  double kept = 0, all = 0;
  for (const PlannedContext& c : plan.contexts) {
    if (c.duplicate) continue;
    if (c.cut) all += static_cast<double>(c.cut->uncut_tokens - c.num_tokens) * plan.num_layers;
    for (const PlannedBlock& b : c.blocks) {
      kept += static_cast<double>(b.num_tokens) * b.kept_layers;
      all += static_cast<double>(b.num_tokens) * plan.num_layers;
    }
  }
  return all > 0 ? kept / all : 1;
}

double recompute_ratio(const Plan& plan) {
  if (plan.document_tokens <= 0) return 0;
  const std::int64_t outside = plan.prefix_tokens + plan.suffix_tokens;
  return static_cast<double>(plan.fates.recomputed +
                             std::max<std::int64_t>(0, plan.fates.computed - outside)) /
         static_cast<double>(plan.document_tokens);
}

/// Enters the tokens after the documents: the earlier turns, the instruction before the first
/// question, and the question.
Status set_question(const PromptFormat& format, const std::string& instruction,
                    const SuiteRecord& record, QueryRequest& request) {
  std::vector<ChatMessage> messages;
  for (const SuiteTurn& turn : record.turns) {
    messages.push_back({"user", turn.question});
    messages.push_back({"assistant", turn.answer});
  }
  messages.push_back({"user", record.question});
  if (!instruction.empty())
    messages.front().content = instruction + "\n\n" + messages.front().content;
  QUIRE_ASSIGN_OR_RETURN(request.suffix_ids, format.suffix(messages));
  const std::size_t skipped = messages.back().content.size() - record.question.size();
  QUIRE_ASSIGN_OR_RETURN(const auto words,
                         question_words(format, messages, skipped, request.suffix_ids));
  request.question_words = {words.first, words.second};
  return {};
}

std::string document_id(const SuiteDocument& d) {
  return "f" + sha256(std::to_string(d.title.size()) + ":" + d.title + d.text).hex().substr(0, 39);
}

/// The most tokens of an answer whose likelihood is measured: longer ones are texts, of which
/// many wordings are right.
constexpr std::int32_t kNllTokens = 64;
constexpr std::string_view kWordLanguage = "english";  // of suites, for the stems of their words

/// Says for each kind how many of its questions repeat earlier ones.
std::vector<SkippedTask> repeated_records(const Suite& suite) {
  std::map<std::string, std::int64_t> repeats;
  for (const SuiteRecord& r : suite.records) ++repeats[r.kind];
  for (const std::size_t i : distinct_records(suite)) --repeats[suite.records[i].kind];
  std::vector<SkippedTask> out;
  for (const auto& [kind, n] : repeats) {
    if (n > 0)
      out.push_back({kind,
                     "repeats of earlier questions over the same documents, which do not "
                     "count: " +
                         std::to_string(n)});
  }
  return out;
}

class Runner {
 public:
  Runner(Engine& engine, IngestService& ingest, std::string ns, const Suite& suite,
         const RunOptions& options, StateFile& state)
      : engine_(engine),
        ingest_(ingest),
        ns_(std::move(ns)),
        suite_(suite),
        options_(options),
        state_(state) {}

  Result<RunResult> run(const std::function<void(const RunProgress&)>& on_progress) {
    RunResult out;
    QUIRE_ASSIGN_OR_RETURN(StrategySpec reference, parse_strategy_spec("recompute"));
    out.strategies.push_back(std::move(reference));
    for (const auto& s : options_.strategies)
      if (s.text != "recompute") out.strategies.push_back(s);
    out.questions = select_records(suite_, options_.per_kind, options_.seed);
    if (out.questions.empty())
      return Status::invalid(
          "suite", suite_.name + " has no question that can be asked" +
                       (suite_.skipped.empty() ? "" : ": " + suite_.skipped.front().reason));
    out.repeated = repeated_records(suite_);
    RunProgress progress;
    progress.total = static_cast<std::int64_t>(out.questions.size() * out.strategies.size());
    Status ended = options_.related_tokens > 0 ? store_all(out.questions) : Status();
    for (std::size_t q = 0; q < out.questions.size() && ended.ok(); ++q) {
      const SuiteRecord& record = suite_.records[out.questions[q]];
      next_ = q + 1 < out.questions.size() ? &suite_.records[out.questions[q + 1]] : nullptr;
      progress.task = record.kind;
      ended = ask(record, out.strategies, [&](const std::string& strategy) {
        progress.strategy = strategy;
        if (on_progress) on_progress(progress);
        ++progress.done;
      });
    }
    present_.merge(std::exchange(corpus_, {}));
    clean_up(nullptr);
    QUIRE_RETURN_IF_ERROR(ended);
    if (on_progress) on_progress(progress);
    for (const std::size_t index : out.questions) {
      const std::string hash = record_hash(suite_.records[index]).hex();
      auto& row = out.rows.emplace_back();
      for (const auto& s : out.strategies) row.push_back(*state_.find(hash, s.text));
    }
    return out;
  }

 private:
  bool long_answers() const { return options_.span_tokens > 0; }
  bool stopped() const { return options_.stop != nullptr && *options_.stop; }
  static Status stop_status() { return Status::cancelled("the run was interrupted"); }

  template <class Tick>
  Status ask(const SuiteRecord& record, const std::vector<StrategySpec>& strategies, Tick&& tick) {
    const std::string hash = record_hash(record).hex();
    const bool finished = std::all_of(strategies.begin(), strategies.end(), [&](const auto& s) {
      return state_.find(hash, s.text) != nullptr;
    });
    if (finished) {
      for (const auto& s : strategies) tick(s.text);
      return {};
    }
    if (stopped()) return stop_status();
    std::string skipped;
    QueryRequest request;
    if (const Status s = prepare(record, request); !s.ok()) {
      if (s.code() != Code::kInvalidArgument) return s;
      skipped = s.message();
    }
    Answer reference;
    if (skipped.empty() && !warm_) {
      // This query is not timed, because a process's first query finds cold caches that no strategy
      // causes.
      warm_ = true;
      QUIRE_RETURN_IF_ERROR(answer(request, strategies.front(), {}, skipped).status());
    }
    for (std::size_t i = 0; i < strategies.size(); ++i) {
      const StrategySpec& spec = strategies[i];
      if (stopped()) return stop_status();
      tick(spec.text);
      const bool known = state_.find(hash, spec.text) != nullptr;
      if (known && i > 0) continue;
      Measurement m;
      if (skipped.empty() && i == 0) {
        QUIRE_ASSIGN_OR_RETURN(reference, answer(request, spec, {}, skipped));
        if (skipped.empty()) {
          m = measured(record, *reference, *reference, reference->text);
          QUIRE_ASSIGN_OR_RETURN(m.nll, answer_nll(record, request, spec));
          QUIRE_RETURN_IF_ERROR(measure_without(record, request, spec, m));
        }
        if (skipped.empty() && long_answers())
          m.spans = spans_of(*reference, *reference, options_.span_tokens);
      } else if (skipped.empty()) {
        QUIRE_ASSIGN_OR_RETURN(m, compared(record, request, spec, *reference));
      }
      if (!skipped.empty()) m.skipped = skipped;
      if (!known) QUIRE_RETURN_IF_ERROR(state_.add(hash, spec.text, m));
    }
    clean_up(next_);
    return {};
  }

  Result<Measurement> compared(const SuiteRecord& record, const QueryRequest& request,
                               const StrategySpec& spec, const AnswerSink& reference) {
    std::string skipped;
    Measurement m;
    QUIRE_ASSIGN_OR_RETURN(
        const Answer forced,
        answer(request, spec, long_answers() ? reference.tokens : reference.choices, skipped));
    if (!skipped.empty()) {
      m.skipped = skipped;
      return m;
    }
    m = measured(record, *forced, reference, reference.text);
    const std::size_t positions = std::min(forced->first_logits.size(),
                                           reference.first_logits.size());
    std::vector<float> log_p, log_q;
    double sum = 0;
    for (std::size_t i = 0; i < positions; ++i) {
      log_softmax(reference.first_logits[i], log_p);
      log_softmax(forced->first_logits[i], log_q);
      sum += kl_divergence(log_p, log_q);
    }
    m.kl = positions > 0 ? sum / static_cast<double>(positions) : 0;
    if (long_answers()) {
      m.spans = spans_of(reference, *forced, options_.span_tokens);
      return m;
    }
    QUIRE_ASSIGN_OR_RETURN(m.nll, answer_nll(record, request, spec));
    // Without forced tokens it would give the same answer, token for token.
    if (forced->choices == reference.choices) return m;
    QUIRE_ASSIGN_OR_RETURN(const Answer own, answer(request, spec, {}, skipped));
    score(record, own->text, m);
    check_citation(record, *own, m);
    m.agreement = token_agreement(reference.choices, own->choices);
    m.answer_tokens = own->stats.completion_tokens;
    return m;
  }

  void score(const SuiteRecord& record, std::string text, Measurement& m) const {
    if (record.first_line) {
      text.erase(0, std::min(text.find_first_not_of('\n'), text.size()));
      text.resize(std::min(text.find('\n'), text.size()));
    }
    const auto begin = text.find_first_not_of(" \t\r\n");
    m.answer = begin == std::string::npos
                   ? ""
                   : text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
    m.has_answers = !record.answers.empty() && !long_answers();
    if (!m.has_answers) return;
    switch (record.rule) {
      case ScoreRule::kExactMatch:
        m.em = exact_match(m.answer, record.answers);
        break;
      case ScoreRule::kRulerAll:
        m.em = ruler_match_all(m.answer, record.answers);
        break;
      case ScoreRule::kRulerAny:
        m.em = ruler_match_any(m.answer, record.answers);
        break;
    }
    m.f1 = f1_score(m.answer, record.answers);
    m.contains = contains_answer(m.answer, record.answers);
  }

  /// Returns Measurement::nll of the record's first answer under the strategy.
  Result<std::optional<double>> answer_nll(const SuiteRecord& record, const QueryRequest& request,
                                           const StrategySpec& spec) {
    std::optional<double> none;
    if (record.answers.empty() || long_answers()) return none;
    const std::vector<std::int32_t> gold = engine_.tokenizer().encode(record.answers.front());
    const auto n = static_cast<std::int32_t>(gold.size());
    if (n == 0 || n > kNllTokens) return none;
    QueryRequest forced = request;
    forced.attribute = false;
    forced.sampling.max_tokens = n;
    forced.sampling.ignore_eos = true;
    forced.sampling.stop.clear();
    forced.sampling.stop_token_ids.clear();
    std::string skipped;
    QUIRE_ASSIGN_OR_RETURN(const Answer run, answer(forced, spec, gold, skipped, gold.size()));
    if (!skipped.empty() || run->first_logits.size() < gold.size()) return none;
    double sum = 0;
    std::vector<float> log_p;
    for (std::size_t i = 0; i < gold.size(); ++i) {
      log_softmax(run->first_logits[i], log_p);
      sum -= log_p[static_cast<std::size_t>(gold[i])];
    }
    return std::optional<double>(sum / n);
  }

  /// Measures the question without its documents: what the model knows, or guesses.
  Status measure_without(const SuiteRecord& record, const QueryRequest& request,
                         const StrategySpec& spec, Measurement& m) {
    if (!m.has_answers) return {};
    QueryRequest bare = request;
    bare.contexts.clear();
    bare.attribute = false;
    std::string skipped;
    QUIRE_ASSIGN_OR_RETURN(const Answer run, answer(bare, spec, {}, skipped));
    if (!skipped.empty()) return {};
    Measurement without;
    score(record, run->text, without);
    m.contains_without = without.contains;
    QUIRE_ASSIGN_OR_RETURN(m.nll_without, answer_nll(record, bare, spec));
    return {};
  }

  /// Sets whether a right answer cites a supporting document first.
  void check_citation(const SuiteRecord& record, const AnswerSink& run, Measurement& m) const {
    m.cited.reset();
    m.cited_attention.reset();
    m.cited_words.reset();
    if (record.supporting_ids.empty() || !m.has_answers || (m.em < 1 && m.contains < 1)) return;
    const auto texts = cited_texts(record, run.plan);
    if (texts.size() != run.plan.contexts.size()) return;
    WordSupport all(run.plan, texts, record.question, kWordLanguage);
    WordSupport answer_only(run.plan, texts, "", kWordLanguage);
    // What is measured is the order of documents, not when to say that none supports the answer.
    CitationRule rule;
    rule.least_confidence = rule.least_further = 0;
    rule.least_found = 0;
    m.cited = supports_first(
        record, run, cite(run.plan, run.attribution, run.text, run.token_ends, rule, &all).blocks);
    m.cited_attention = supports_first(
        record, run, cite(run.plan, run.attribution, run.text, run.token_ends).blocks);
    const std::vector<double> found = answer_only.of(run.text);
    std::size_t block = 0;
    double best = 0;
    m.cited_words = 0;
    for (std::size_t c = 0; c < run.plan.contexts.size(); ++c) {
      double sum = 0;
      for (std::size_t b = 0; b < run.plan.contexts[c].blocks.size(); ++b) sum += found[block++];
      if (sum <= best) continue;
      best = sum;
      m.cited_words = supports(record, run.plan.contexts[c].document_id);
    }
  }

  static bool supports(const SuiteRecord& record, const std::string& id) {
    return std::ranges::any_of(*record.documents, [&](const SuiteDocument& d) {
      return document_id(d) == id && std::ranges::count(record.supporting_ids, d.id) > 0;
    });
  }
  static bool supports_first(const SuiteRecord& record, const AnswerSink& run,
                             const std::vector<CitedBlocks>& citations) {
    return !citations.empty() &&
           supports(record, run.plan.contexts[at(citations.front().context)].document_id);
  }

  /// Returns the texts of the prompt's contexts and of their blocks.
  std::vector<CitedText> cited_texts(const SuiteRecord& record, const Plan& plan) const {
    std::vector<CitedText> out;
    for (std::size_t i = 0; i < contexts_.size() && i < plan.contexts.size(); ++i) {
      const ContextText& c = contexts_[i];
      CitedText& text = out.emplace_back();
      text.title = (*record.documents)[c.document].title;
      text.text = (*record.documents)[c.document].text.substr(c.begin, c.text_size);
      for (const PlannedBlock& b : plan.contexts[i].blocks) {
        std::size_t begin = c.text_size, end = 0;
        for (std::int64_t t = b.first_token; t < b.first_token + b.num_tokens; ++t) {
          if (t >= count_of(c.spans)) break;
          begin = std::min<std::size_t>(begin, c.spans[to_size(t)].begin);
          end = std::max<std::size_t>(end, c.spans[to_size(t)].end);
        }
        text.blocks.emplace_back(begin, std::max(begin, end));
      }
    }
    return out;
  }

  /// Where a context's tokens stand in its document.
  struct ContextText {
    std::size_t document = 0;              ///< index into SuiteRecord::documents
    std::size_t begin = 0, text_size = 0;  ///< bytes of its text
    std::vector<TokenSpan> spans;          ///< of each token, bytes from `begin` on
  };

  /// Tokens of a prompt's contexts, [context] of [begin, end).
  using TokenRanges = std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>;

  /// Returns the share of the ranges' tokens that the plan keeps, mean over layers; none: there are
  /// no such tokens.
  static std::optional<double> kept_share(const Plan& plan, const TokenRanges& ranges) {
    double kept = 0, all = 0;
    for (std::size_t i = 0; i < ranges.size() && i < plan.contexts.size(); ++i) {
      for (const PlannedBlock& b : plan.contexts[i].blocks) {
        for (const auto& [begin, end] : ranges[i]) {
          const std::int64_t from = std::max<std::int64_t>(begin, b.first_token),
                             to = std::min<std::int64_t>(end, b.first_token + b.num_tokens);
          if (to > from) kept += static_cast<double>(to - from) * b.kept_layers / plan.num_layers;
        }
      }
      for (const auto& [begin, end] : ranges[i]) all += static_cast<double>(end - begin);
    }
    return all > 0 ? std::optional(kept / all) : std::nullopt;
  }

  /// Returns the tokens of each context that stand for bytes of `ranges`, [context] of bytes of its
  /// document's text.
  TokenRanges tokens_of(const std::vector<ContextText>& contexts, std::size_t document,
                        std::size_t begin, std::size_t end) const {
    TokenRanges out(contexts.size());
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      const ContextText& c = contexts[i];
      if (c.document != document || end <= c.begin || begin >= c.begin + c.text_size) continue;
      std::int64_t first = -1, last = -1;
      for (std::size_t t = 0; t < c.spans.size(); ++t) {
        const std::size_t from = c.begin + c.spans[t].begin, to = c.begin + c.spans[t].end;
        if (from >= to || to <= begin || from >= end) continue;
        if (first < 0) first = static_cast<std::int64_t>(t);
        last = static_cast<std::int64_t>(t) + 1;
      }
      if (first >= 0) out[i].emplace_back(first, last);
    }
    return out;
  }

  /// Finds the tokens of the record's support and of its answer in the request's contexts.
  Status find_support(const SuiteRecord& record, const QueryRequest& request) {
    support_.clear();
    answers_.clear();
    contexts_.clear();
    if (record.support.empty() && record.supporting_ids.empty()) return {};
    std::vector<ContextText> contexts;
    for (std::size_t d = 0; d < record.documents->size(); ++d) {
      const SuiteDocument& document = (*record.documents)[d];
      QUIRE_ASSIGN_OR_RETURN(const auto chunks,
                             ingest_.documents().chunks(ns_, document_id(document)));
      for (const ChunkInfo& chunk : chunks) {
        const auto text = std::string_view(document.text)
                              .substr(chunk.byte_begin, chunk.byte_end - chunk.byte_begin);
        QUIRE_ASSIGN_OR_RETURN(DocumentTokens tokens,
                               engine_.prompt_format().document(document.title, text));
        contexts.push_back({d, chunk.byte_begin, text.size(), std::move(tokens.spans)});
      }
    }
    if (contexts.size() != request.contexts.size())
      return Status::internal("chunks and contexts of a suite's documents differ");
    contexts_ = contexts;
    support_.resize(contexts.size());
    for (const SuiteSupport& s : record.support) {
      const TokenRanges found = tokens_of(contexts, s.document, s.begin, s.end);
      for (std::size_t i = 0; i < found.size(); ++i)
        support_[i].insert(support_[i].end(), found[i].begin(), found[i].end());
    }
    std::set<std::size_t> supporting;
    for (const SuiteSupport& s : record.support) supporting.insert(s.document);
    for (const std::size_t d : supporting) {
      if (record.answers.empty()) break;
      const std::string& text = (*record.documents)[d].text;
      const std::string& answer = record.answers.front();
      for (auto at = text.find(answer); at != std::string::npos; at = text.find(answer, at + 1))
        answers_.push_back(tokens_of(contexts, d, at, at + answer.size()));
    }
    return {};
  }

  Measurement measured(const SuiteRecord& record, const AnswerSink& run,
                       const AnswerSink& reference, const std::string& text) const {
    Measurement m;
    score(record, text, m);
    check_citation(record, run, m);
    m.agreement = token_agreement(reference.choices, run.choices);
    m.support_kept = kept_share(run.plan, support_);
    for (const TokenRanges& place : answers_) {
      const auto kept = kept_share(run.plan, place);
      if (kept && (!m.answer_kept || *kept > *m.answer_kept)) m.answer_kept = kept;
    }
    m.sequence_ratio = sequence_ratio(run.plan);
    m.recompute_ratio = recompute_ratio(run.plan);
    for (const std::int64_t bytes : run.stats.tier_bytes)
      m.bytes_loaded += static_cast<double>(bytes);
    m.ttft_ms = run.stats.ttft_ms;
    m.decode_ms = run.stats.decode_ms;
    m.moved = run.stats.retrieve.copied_share();
    m.corrected = run.stats.retrieve.corrected_share();
    m.prompt_tokens = run.plan.prompt_tokens;
    m.answer_tokens = run.stats.completion_tokens;
    return m;
  }

  Result<Answer> answer(const QueryRequest& prompt, const StrategySpec& spec,
                        const std::vector<std::int32_t>& forced, std::string& skipped,
                        std::size_t logits_kept = kKlPositions) {
    QueryRequest request = prompt;
    request.id = "fidelity";
    request.cache = spec.cache;
    // Such a prompt is sent as if nothing of it were cached.
    if (spec.cache.prompt_compression != "none") {
      for (QueryContext& c : request.contexts) c.key.reset();
    }
    request.sampling.forced_tokens = forced;
    auto sink = std::make_shared<AnswerSink>(long_answers() ? to_size(request.sampling.max_tokens)
                                                            : logits_kept);
    auto handle = engine_.query(std::move(request), sink);
    Status status = handle.status();
    if (status.ok()) {
      sink->wait(*handle, options_.stop);
      status = sink->status;
    }
    if (stopped()) return stop_status();
    if (status.ok()) return sink;
    if (parse_window_exceeded(status) || status.code() == Code::kResourceExhausted) {
      skipped = status.message();
      return sink;
    }
    return status.with_context("strategy " + spec.text);
  }

  Status prepare(const SuiteRecord& record, QueryRequest& request) {
    const PromptFormat& format = engine_.prompt_format();
    QUIRE_ASSIGN_OR_RETURN(request.prefix_ids, format.prefix());
    QUIRE_RETURN_IF_ERROR(set_question(format, suite_.instruction, record, request));
    request.attribute = !record.supporting_ids.empty();
    request.sampling.max_tokens = record.max_tokens > 0 ? record.max_tokens : options_.max_tokens;
    if (long_answers()) {
      request.sampling.max_tokens = options_.max_tokens;
      request.sampling.ignore_eos = true;
      request.sampling.temperature = static_cast<float>(options_.temperature);
      request.sampling.seed = options_.seed;
    } else {
      for (const auto& s : format.stop_strings()) request.sampling.stop.push_back(s);
      request.sampling.stop_token_ids = format.stop_ids();
    }
    QUIRE_RETURN_IF_ERROR(ingest_documents(record));
    std::vector<std::string> ids;
    for (const auto& d : *record.documents) ids.push_back(document_id(d));
    QUIRE_ASSIGN_OR_RETURN(Resolved resolved, ingest_.resolve(ns_, ids, {}));
    if (!resolved.missing.empty() || !resolved.not_ready.empty())
      return Status::internal("a document of the suite was not kept by the document service");
    for (auto& d : resolved.documents)
      for (auto& c : d.contexts) request.contexts.push_back(std::move(c));
    // What is said of documents behind the lead-in must not be measured on others.
    if (options_.lead_in &&
        std::ranges::count(request.contexts, ReadBehind(), &QueryContext::read_behind) > 0)
      return Status::invalid("suite",
                             "has a document that leaves no room for the lead-in in the model's "
                             "window");
    QUIRE_RETURN_IF_ERROR(find_support(record, request));
    request.tenant = resolved.tenant;
    request.salt_digest = resolved.salt_digest;
    std::int64_t tokens = static_cast<std::int64_t>(request.prefix_ids.size() +
                                                    request.suffix_ids.size()) +
                          request.sampling.max_tokens;
    for (const auto& c : request.contexts) tokens += count_of(c.token_ids);
    const std::int64_t window = engine_.info().max_model_len;
    if (tokens > window)
      return Status::invalid("suite", "needs " + std::to_string(tokens) +
                                          " tokens with its answer; the model's window holds " +
                                          std::to_string(window));
    return {};
  }

  /// Stores the documents of all questions, without KV.
  Status store_all(const std::vector<std::size_t>& questions) {
    for (const std::size_t q : questions)
      QUIRE_RETURN_IF_ERROR(ingest_documents(suite_.records[q], KvPolicy::kLazy));
    corpus_ = std::exchange(present_, {});
    return {};
  }

  Status ingest_documents(const SuiteRecord& record, KvPolicy kv = KvPolicy::kEager) {
    std::vector<DocumentInput> batch;
    std::set<std::string> in_batch;
    const std::size_t most = to_size(ingest_.options().max_documents_per_call);
    for (const auto& d : *record.documents) {
      std::string id = document_id(d);
      if (present_.contains(id) || !in_batch.insert(id).second) continue;
      DocumentInput input;
      input.id = std::move(id);
      input.title = d.title;
      input.text = d.text;
      batch.push_back(std::move(input));
      if (batch.size() == most) {
        QUIRE_RETURN_IF_ERROR(submit(std::move(batch), kv));
        batch.clear();
      }
    }
    return batch.empty() ? Status() : submit(std::move(batch), kv);
  }

  Status submit(std::vector<DocumentInput> batch, KvPolicy kv) {
    for (const auto& d : batch) present_.insert(*d.id);
    BatchOptions options;
    options.kv = kv;
    options.chunking.max_tokens = options_.chunk_tokens;
    options.chunking.context_tokens = options_.context_tokens;
    options.chunking.lead_in = options_.lead_in;
    if (kv == KvPolicy::kEager) options.chunking.related_tokens = options_.related_tokens;
    QUIRE_ASSIGN_OR_RETURN(const JobSnapshot job, ingest_.submit(ns_, std::move(batch), options));
    auto done = std::make_shared<std::promise<JobSnapshot>>();
    auto future = done->get_future();
    QUIRE_ASSIGN_OR_RETURN(
        const Subscription subscription,
        ingest_.jobs().subscribe(ns_, job.id, [done](JobEvent event, const JobSnapshot& s) {
          if (event == JobEvent::kDone) done->set_value(s);
        }));
    while (future.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
      if (!stopped()) continue;
      (void)ingest_.jobs().cancel_job(ns_,
                                      job.id);  // a job that has just ended needs no cancelling
      return stop_status();
    }
    const JobSnapshot end = future.get();
    for (const auto& item : end.results) {
      if (item.error)
        return Status::precondition("a document of the suite could not be cached: " +
                                    item.error->message);
    }
    return {};
  }

  /// Removes the documents that `next` does not use, but those of the corpus.
  void clean_up(const SuiteRecord* next) {
    std::set<std::string> wanted = corpus_;
    if (next != nullptr)
      for (const auto& d : *next->documents) wanted.insert(document_id(d));
    for (auto it = present_.begin(); it != present_.end();) {
      if (wanted.contains(*it)) {
        ++it;
        continue;
      }
      (void)ingest_.documents().remove(ns_, *it);  // a document left behind only costs space
      it = present_.erase(it);
    }
  }

  Engine& engine_;
  IngestService& ingest_;
  const std::string ns_;
  const Suite& suite_;
  const RunOptions& options_;
  StateFile& state_;
  const SuiteRecord* next_ = nullptr;
  std::set<std::string> present_;
  std::set<std::string> corpus_;       ///< with related_tokens: documents of all questions
  TokenRanges support_;                ///< of the current record; empty: unknown
  std::vector<ContextText> contexts_;  ///< of the current record; empty: not needed
  std::vector<TokenRanges> answers_;   ///< [place]
  bool warm_ = false;
};

}  // namespace

Result<RunResult> run_suite(Engine& engine, IngestService& ingest, const std::string& ns,
                            const Suite& suite, const RunOptions& options, StateFile& state,
                            const std::function<void(const RunProgress&)>& on_progress) {
  if (options.max_tokens < 1) return Status::invalid("max_tokens", "must be at least 1");
  if (options.span_tokens < 0)
    return Status::invalid("span_tokens",
                           "must not be negative; 0: answers end where the model ends them");
  if (options.temperature < 0 || (options.temperature > 0 && options.span_tokens == 0))
    return Status::invalid("temperature",
                           "must not be negative, and is for long answers (span_tokens)");
  if (options.chunk_tokens < 16) return Status::invalid("chunk_tokens", "must be at least 16");
  Runner runner(engine, ingest, ns, suite, options, state);
  return runner.run(on_progress);
}

Result<std::int64_t> prompt_tokens(const Engine& engine, const SuiteRecord& record,
                                   std::int32_t chunk_tokens) {
  const PromptFormat& format = engine.prompt_format();
  QUIRE_ASSIGN_OR_RETURN(const auto prefix, format.prefix());
  QueryRequest question;
  QUIRE_RETURN_IF_ERROR(set_question(format, "", record, question));
  std::int64_t total = static_cast<std::int64_t>(prefix.size() + question.suffix_ids.size());
  for (const auto& d : *record.documents) {
    QUIRE_ASSIGN_OR_RETURN(const auto whole, format.document(d.title, d.text));
    QUIRE_ASSIGN_OR_RETURN(const auto header, format.document(d.title, ""));
    const auto n = count_of(whole.ids), head = count_of(header.ids);
    // Chunks end at sentences, slightly before they are full.
    const std::int64_t room = std::max<std::int64_t>(1, (chunk_tokens - head) * 9 / 10);
    const std::int64_t chunks = n <= chunk_tokens ? 1 : (n - head + room - 1) / room;
    total += n + (chunks - 1) * (head + 1);
  }
  return total;
}

}  // namespace quire
