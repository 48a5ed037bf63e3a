#include "fidelity/evidence/probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "base/index.h"
#include "base/sha256.h"
#include "engine/chat/question_words.h"
#include "fidelity/answer_sink.h"
#include "fidelity/score.h"

namespace quire {
namespace {

/// Bytes of a sentence that is asked for: shorter ones are headings, longer ones tables.
constexpr std::size_t kShortestSentence = 40, kLongestSentence = 240;

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

/// Returns the sentences of a text that a probe may ask for. A line break ends a sentence as a full
/// stop does, which keeps headings and tables apart from prose.
std::vector<std::string_view> sentences(std::string_view text) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  const auto end_at = [&](std::size_t end) {
    const std::string_view sentence = trimmed(text.substr(begin, end - begin));
    if (sentence.size() >= kShortestSentence && sentence.size() <= kLongestSentence)
      out.push_back(sentence);
    begin = end;
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool stop = (text[i] == '.' || text[i] == '!' || text[i] == '?') &&
                      (i + 1 == text.size() || is_space(text[i + 1]));
    if (stop || text[i] == '\n') end_at(i + 1);
    // Full stops of Chinese and Japanese: U+3002, U+FF01, U+FF1F, of three bytes each.
    const std::string_view three = text.substr(i, 3);
    if (three == "\xE3\x80\x82" || three == "\xEF\xBC\x81" || three == "\xEF\xBC\x9F")
      end_at(i + 3);
  }
  end_at(text.size());
  return out;
}

/// Returns the place near the middle of a sentence where its known end begins: before a word, or
/// before a character where there are no spaces.
std::size_t middle_of(std::string_view sentence) {
  const std::size_t half = sentence.size() / 2;
  const std::size_t space = sentence.find(' ', half);
  if (space != std::string_view::npos && space + 8 < sentence.size()) return space;
  std::size_t at = half;
  while (at < sentence.size() && (static_cast<unsigned char>(sentence[at]) & 0xC0) == 0x80) ++at;
  return at;
}

/// What one run of a probe gave.
using Run = std::shared_ptr<AnswerSink>;

Result<Run> run_held(const Probe& probe, const CacheOptions& cache, bool documents,
                     const RunQuery& run) {
  QueryRequest request = probe.request;
  request.id = "probe";
  request.cache = cache;
  request.certified.reset();
  request.attribute = false;
  if (!documents) request.contexts.clear();
  request.sampling = {};
  request.sampling.forced_tokens = probe.answer;
  request.sampling.max_tokens = static_cast<std::int32_t>(probe.answer.size());
  request.sampling.ignore_eos = true;
  request.deadline = std::chrono::steady_clock::time_point::max();
  auto sink = std::make_shared<AnswerSink>(probe.answer.size());
  QUIRE_RETURN_IF_ERROR(run(std::move(request), sink));
  if (sink->first_logits.size() < probe.answer.size())
    return Status::internal("a probe's answer ended early");
  return sink;
}

double nll_of(const AnswerSink& run, const std::vector<std::int32_t>& answer) {
  double sum = 0;
  std::vector<float> log_p;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    log_softmax(run.first_logits[i], log_p);
    sum -= log_p[to_size(answer[i])];
  }
  return sum / static_cast<double>(answer.size());
}

double kl_of(const AnswerSink& reference, const AnswerSink& run) {
  double sum = 0;
  std::vector<float> log_p, log_q;
  for (std::size_t i = 0; i < reference.first_logits.size(); ++i) {
    log_softmax(reference.first_logits[i], log_p);
    log_softmax(run.first_logits[i], log_q);
    sum += kl_divergence(log_p, log_q);
  }
  return sum / static_cast<double>(reference.first_logits.size());
}

}  // namespace

/// What a probe is made of: the chosen contexts and the text behind them.
struct ProbeMaker::Material {
  std::string_view text;      ///< of the document that holds the known text
  std::uint64_t shown_begin;  ///< bytes of it that are in the prompt
  std::uint64_t shown_end;
};

/// Returns whether ranges of a text's bytes, one per chunk, can be of this text.
static bool ranges_fit(std::span<const std::pair<std::uint64_t, std::uint64_t>> ranges,
                       std::string_view text) {
  return std::ranges::all_of(ranges, [&](const auto& range) {
    return range.first <= range.second && range.second <= text.size();
  });
}

Result<std::optional<Probe>> ProbeMaker::make(const std::string& ns,
                                              std::span<const std::string> ids) {
  QUIRE_ASSIGN_OR_RETURN(Resolved resolved, ingest_.resolve(ns, ids, {.touch = false}));
  std::optional<Probe> none;
  if (ids.empty() || resolved.documents.empty() || resolved.documents.front().id != ids.front())
    return none;
  for (const ResolvedDocument& d : resolved.documents)
    if (d.stale || d.other_salt || d.pending || d.contexts.empty()) return none;
  ResolvedDocument& source = resolved.documents.front();
  QUIRE_ASSIGN_OR_RETURN(const std::string text, ingest_.documents().content(ns, source.id));
  // The text is read after the chunks, and a new version may have been committed in between: the
  // ranges of the old one mean nothing in it.
  const auto now = ingest_.documents().get(ns, source.id);
  if (!now.ok() || now->content_hash != source.content_hash ||
      source.byte_ranges.size() != source.contexts.size() || !ranges_fit(source.byte_ranges, text))
    return none;

  // A run of the source's chunks, half of the room at most.
  const std::size_t chunks = source.contexts.size();
  std::size_t first = below(chunks), last = first;
  std::int64_t tokens = count_of(source.contexts[first].token_ids);
  while (last + 1 < chunks &&
         tokens + count_of(source.contexts[last + 1].token_ids) <= prompt_tokens_ / 2)
    tokens += count_of(source.contexts[++last].token_ids);
  Probe probe;
  probe.ns = ns;
  probe.document = source.id;
  probe.content_hash = source.content_hash;
  probe.read_behind = source.contexts.front().read_behind;
  std::vector<QueryContext> shown(std::make_move_iterator(source.contexts.begin() + first),
                                  std::make_move_iterator(source.contexts.begin() + last + 1));
  std::vector<QueryContext> others;
  for (std::size_t d = 1; d < resolved.documents.size(); ++d) {
    if (resolved.documents[d].contexts.front().read_behind != probe.read_behind) continue;
    for (QueryContext& c : resolved.documents[d].contexts) {
      if (tokens + count_of(c.token_ids) > prompt_tokens_) break;
      tokens += count_of(c.token_ids);
      others.push_back(std::move(c));
    }
  }
  if (shown.size() + others.size() < to_size(kLeastContexts)) return none;
  probe.request.tenant = resolved.tenant;
  probe.request.salt_digest = resolved.salt_digest;
  QUIRE_ASSIGN_OR_RETURN(probe.request.prefix_ids, engine_.prompt_format().prefix());
  const Material from{text, source.byte_ranges[first].first, source.byte_ranges[last].second};
  const bool goes_on = last + 1 < chunks && below(2) == 0;
  if (!(goes_on && continuation(from, probe)) && !quote(from, probe)) return none;
  // What goes on stands right before the question; a sentence may stand anywhere.
  const bool source_last = probe.kind == ProbeKind::kContinuation || below(2) == 0;
  auto& contexts = probe.request.contexts;
  contexts = std::move(source_last ? others : shown);
  for (QueryContext& c : source_last ? shown : others) contexts.push_back(std::move(c));
  return std::optional(std::move(probe));
}

bool ProbeMaker::quote(const Material& from, Probe& probe) {
  const auto found = sentences(
      from.text.substr(from.shown_begin, from.shown_end - from.shown_begin));
  if (found.empty()) return false;
  const std::string_view sentence = found[below(found.size())];
  const std::size_t middle = middle_of(sentence);
  const std::string question = "A document has a sentence that begins with \"" +
                               std::string(sentence.substr(0, middle)) +
                               "\". Write the rest of that sentence.";
  probe.kind = ProbeKind::kQuote;
  return ask(question, trimmed(sentence.substr(middle)), probe);
}

bool ProbeMaker::continuation(const Material& from, Probe& probe) {
  const std::string_view rest = trimmed(from.text.substr(from.shown_end));
  probe.kind = ProbeKind::kContinuation;
  return ask("Write how the last document goes on.", rest.substr(0, 8 * kMostProbeTokens), probe);
}

/// Enters a question and the text that is known to answer it; false: there is no such text.
bool ProbeMaker::ask(std::string_view question, std::string_view known, Probe& probe) {
  const ChatMessage message{"user", std::string(question)};
  const std::span messages(&message, 1);
  auto suffix = engine_.prompt_format().suffix(messages);
  if (!suffix.ok()) return false;
  probe.request.suffix_ids = std::move(*suffix);
  const auto words = question_words(engine_.prompt_format(), messages, 0, probe.request.suffix_ids);
  if (words.ok()) probe.request.question_words = {words->first, words->second};
  probe.answer = engine_.tokenizer().encode(known);
  // The last token of a text that is cut may be part of a longer one.
  if (probe.answer.size() > kMostProbeTokens) probe.answer.resize(kMostProbeTokens);
  return probe.answer.size() >= 2;
}

std::string subject_of(const Probe& probe) {
  Sha256 hash;
  for (const auto* ids : {&probe.request.suffix_ids, &probe.answer}) {
    hash.update_u64(ids->size());
    for (const std::int32_t id : *ids) hash.update_u64(static_cast<std::uint64_t>(id));
  }
  return hash.finish().hex();
}

Result<ProbeResult> measure_probe(const Probe& probe, std::span<const StrategySpec> candidates,
                                  const RunQuery& run) {
  CacheOptions whole;
  whole.strategy = "recompute";
  whole.decode = "dense";
  whole.write = false;
  QUIRE_ASSIGN_OR_RETURN(const Run reference, run_held(probe, whole, true, run));
  QUIRE_ASSIGN_OR_RETURN(const Run bare, run_held(probe, whole, false, run));
  ProbeResult out;
  out.kind = probe.kind;
  out.ns = probe.ns;
  out.document = probe.document;
  out.content_hash = probe.content_hash;
  out.subject = subject_of(probe);
  out.contexts = std::ssize(probe.request.contexts);
  out.read_behind = probe.read_behind;
  out.nll = nll_of(*reference, probe.answer);
  out.nll_without = nll_of(*bare, probe.answer);
  out.ttft_ms = reference->stats.ttft_ms;
  if (!std::isfinite(out.nll) || !std::isfinite(out.nll_without))
    return Status::internal("the likelihood of a known text is not finite");
  for (const StrategySpec& spec : candidates) {
    QUIRE_ASSIGN_OR_RETURN(const Run held, run_held(probe, spec.cache, true, run));
    ProbeScore score{spec.text, nll_of(*held, probe.answer),
                     token_agreement(reference->choices, held->choices), kl_of(*reference, *held),
                     held->stats.ttft_ms};
    if (!std::isfinite(score.nll + score.kl)) {
      // Left out, the probe would be one less against the candidate.
      score.nll = std::max(out.nll, out.nll_without);
      score.agreement = 0;
      score.kl = 0;
    }
    out.scores.push_back(std::move(score));
  }
  return out;
}

}  // namespace quire
