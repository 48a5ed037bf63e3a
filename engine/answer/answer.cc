#include "engine/answer/answer.h"

#include "base/index.h"
#include "engine/api/query_sink.h"

#include <algorithm>

namespace quire {
namespace {

std::vector<std::string> stop_texts(const QueryRun& run) {
  std::vector<std::string> stops = run.request.sampling.stop;
  if (!run.request.sampling.ignore_eos)
    stops.insert(stops.end(), run.core.stop_strings.begin(), run.core.stop_strings.end());
  return stops;
}

bool contains(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

Answer::Answer(QueryRun& run, QuerySink& sink, std::int32_t next_position)
    : run_(run),
      sink_(sink),
      sampler_(run.request.sampling),
      text_(*run.core.tokenizer, stop_texts(run), run.request.sampling.shown_tokens,
            run.request.sampling.continues),
      next_position_(next_position) {
  sampler_.record_prompt(run.request.prefix_ids);
  for (const QueryContext& c : run.request.contexts) sampler_.record_prompt(c.token_ids);
  sampler_.record_prompt(run.request.suffix_ids);
  sampler_.end_with(ending_ids());
  if (const auto& grammar = run.request.sampling.grammar)
    matcher_.emplace(*grammar, *run.core.token_trie, run.request.sampling.continues);
}

std::vector<std::int32_t> Answer::ending_ids() const {
  return quire::ending_ids(run_.request.sampling, run_.core.facts.stop_ids);
}

/// Returns whether the answer has the tokens that it must have.
bool Answer::may_stop() const {
  return run_.stats.completion_tokens >= run_.request.sampling.min_tokens;
}

std::optional<Answer::End> Answer::advance(std::span<const float> logits) {
  if (logits.empty())
    return End{Status::internal("the prompt ended without logits"), FinishReason::kError};
  if (sink_.wants_logits()) sink_.on_logits(logits);
  const auto& forced = run_.request.sampling.forced_tokens;
  const auto at = to_size(run_.stats.completion_tokens);
  const std::int32_t token_id = at < forced.size() ? forced[at] : choose(logits);
  if (token_id < 0)
    return End{Status::unimplemented(
                   "no token of this model's vocabulary continues an answer of the form asked for"),
               FinishReason::kError};
  return accept(token_id, logits);
}

/// Returns how many tokens the answer may still have, including the next.
std::int64_t Answer::room() const {
  return std::min<std::int64_t>(run_.request.sampling.max_tokens - run_.stats.completion_tokens,
                                run_.core.facts.window - next_position_ + 1);
}

/// Returns whether the most likely token that the grammar allows is one withheld for lack of room.
bool Answer::prefers_withheld(std::span<const float> logits) const {
  std::int32_t best = -1;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    const bool open = id / 64 < allowed_.size() && (allowed_[id / 64] >> (id % 64) & 1) != 0;
    if (!open && !matcher_->withheld(static_cast<std::int32_t>(id))) continue;
    if (best < 0 || logits[id] > logits[at(best)]) best = static_cast<std::int32_t>(id);
  }
  return matcher_->withheld(best);
}

/// Chooses the next token; -1: the grammar requires bytes that no token begins with.
std::int32_t Answer::choose(std::span<const float> logits) {
  const SamplingOptions& o = run_.request.sampling;
  // A grammar says itself where an answer may end.
  if (!matcher_) {
    if (o.min_tokens > 0) sampler_.ban(may_stop() ? std::vector<std::int32_t>() : ending_ids());
    return sampler_.sample(logits);
  }
  // An answer that nothing may end continues to its last token.
  const bool endless = o.ignore_eos && o.stop_token_ids.empty();
  const auto allowed = endless ? matcher_->allowed() : matcher_->allowed(room());
  allowed_.assign(allowed.begin(), allowed.end());
  // Ids that end an answer are allowed only where the answer is complete.
  const auto may_end = [&](std::int32_t id) {
    const auto word = to_size(id) / 64;
    if (word >= allowed_.size()) return;
    const std::uint64_t bit = std::uint64_t{1} << (id % 64);
    allowed_[word] = matcher_->complete() ? allowed_[word] | bit : allowed_[word] & ~bit;
  };
  if (!o.ignore_eos)
    std::for_each(run_.core.facts.stop_ids.begin(), run_.core.facts.stop_ids.end(), may_end);
  std::for_each(o.stop_token_ids.begin(), o.stop_token_ids.end(), may_end);
  for (const std::int32_t id : run_.core.token_trie->markers()) {
    // A marker that has no text would be missing in the answer.
    if (contains(o.shown_tokens, id)) continue;
    const auto word = to_size(id) / 64;
    if (word < allowed_.size()) allowed_[word] &= ~(std::uint64_t{1} << (id % 64));
  }
  if (matcher_->narrowed() && prefers_withheld(logits)) cut_short_ = true;
  return sampler_.sample(logits, allowed_);
}

DecodeRow Answer::row(std::size_t ahead) {
  DecodeRow row;
  row.token_id = next_token_;
  row.position = next_position_;
  row.cache = &*run_.cache;
  row.retriever = run_.retriever.get();
  row.rule = rule();
  const std::size_t count = row.rule && ahead > 0 ? make_rules_ahead(*row.rule, ahead) : 0;
  row.ahead = std::span(ahead_).first(count);
  return row;
}

/// Makes the rules that follow the first, and returns how many steps may follow. Rules are given
/// only where no token changes the next one's, but for its random number.
std::size_t Answer::make_rules_ahead(const SampleRule& first, std::size_t most) {
  const std::int64_t left = run_.request.sampling.max_tokens - run_.stats.completion_tokens - 1,
                     positions = run_.core.facts.window - next_position_ - 1;
  const auto count = to_size(
      std::max<std::int64_t>(0, std::min({static_cast<std::int64_t>(most), left, positions})));
  if (!(first.temperature > 0)) {
    ahead_.assign(count, first);
    return count;
  }
  if (!later_) later_ = sampler_;
  while (ahead_.size() < count) {
    (void)later_->next_rule();  // takes this token's number, as record() goes on to the next
    later_->record(0);
    ahead_.push_back(later_->next_rule().value_or(first));
  }
  return count;
}

/// Goes on by one token.
void Answer::pass_rule() {
  if (!ahead_.empty()) {
    ahead_.erase(ahead_.begin());
  } else if (later_) {
    (void)later_->next_rule();
    later_->record(0);
  }
}

std::optional<SampleRule> Answer::rule() {
  const SamplingOptions& o = run_.request.sampling;
  const bool forced = static_cast<std::size_t>(run_.stats.completion_tokens) <
                      o.forced_tokens.size();
  if (matcher_ || forced || o.top_logprobs || sink_.wants_logits() || !may_stop())
    return std::nullopt;
  sampler_.ban({});
  return sampler_.next_rule();
}

std::optional<Answer::End> Answer::decoded(const DecodeRow& row) {
  if (!row.status.ok()) return End{row.status, FinishReason::kError};
  ++next_position_;
  pass_rule();
  return row.drawn >= 0 ? accept(row.drawn, {}) : advance(row.logits);
}

std::optional<Answer::End> Answer::followed(std::int32_t token_id) {
  ++next_position_;
  pass_rule();
  (void)sampler_.next_rule();  // takes the random number of the step's rule, which later_ made
  return accept(token_id, {});
}

std::optional<Answer::End> Answer::accept(std::int32_t token_id, std::span<const float> logits) {
  const SamplingOptions& o = run_.request.sampling;
  const End gone{Status::cancelled("the receiver of the answer went away"),
                 FinishReason::kCancelled};
  const FinishReason stopped_reason = cut_short_ ? FinishReason::kLength : FinishReason::kStop;
  ++run_.stats.completion_tokens;
  // The token that is the last one needed may not end the answer itself.
  const bool stops = matcher_ || run_.stats.completion_tokens > o.min_tokens;
  if (stops && ((!o.ignore_eos && contains(run_.core.facts.stop_ids, token_id)) ||
                contains(o.stop_token_ids, token_id))) {
    const std::string rest = text_.finish();
    // The answer is complete, whether or not the sink still listens.
    if (!rest.empty()) (void)sink_.on_token(token_id, rest);
    return End{{}, stopped_reason};
  }
  if (o.top_logprobs) sink_.on_logprobs(token_logprobs(logits, token_id, *o.top_logprobs));
  sampler_.record(token_id);
  if (run_.request.attribute) tokens_.push_back(token_id);
  if (matcher_)
    QUIRE_CHECK(matcher_->advance(token_id), "a token was taken that the grammar does not allow");
  std::string text = text_.push(token_id, matcher_ || may_stop());
  // Nothing can follow, so no token is needed to say so.
  const bool closed = matcher_ && matcher_->finished();
  const bool full = run_.stats.completion_tokens >= o.max_tokens ||
                    next_position_ >= run_.core.facts.window;
  const bool stopped = text_.stopped();
  if ((full || closed) && !stopped) text += text_.finish();
  if (text_.stopped()) run_.stats.stop_text = text_.stop_text();
  if (!sink_.on_token(token_id, text)) return gone;
  if (closed || stopped || text_.stopped()) return End{{}, stopped_reason};
  if (full) return End{{}, FinishReason::kLength};
  next_token_ = token_id;
  return std::nullopt;
}

}  // namespace quire
