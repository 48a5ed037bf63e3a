#include "engine/sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/index.h"

namespace quire {
namespace {

std::uint64_t splitmix64(std::uint64_t& x) {
  std::uint64_t z = (x += 0x9e3779b97f4a7c15ull);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

std::uint64_t rotl(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

/// Random number generator xoshiro256** (Blackman and Vigna).
std::uint64_t next(std::uint64_t (&s)[4]) {
  const std::uint64_t result = rotl(s[1] * 5, 7) * 9;
  const std::uint64_t t = s[1] << 17;
  s[2] ^= s[0];
  s[3] ^= s[1];
  s[1] ^= s[2];
  s[0] ^= s[3];
  s[2] ^= t;
  s[3] = rotl(s[3], 45);
  return result;
}

double uniform(std::uint64_t (&s)[4]) { return static_cast<double>(next(s) >> 11) * 0x1.0p-53; }

/// Orders by larger logit, then by lower id.
bool before(const std::pair<float, std::int32_t>& a, const std::pair<float, std::int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

/// Stands for the logarithm of zero.
constexpr double kLogprobFloor = -9999;
/// A logit that no model produces, but that stays finite after division by any temperature.
constexpr float kLeast = -1e30f;

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

std::int32_t counted_answer_tokens(const SamplingOptions& o) {
  if (o.max_tokens_asked) return o.max_tokens;
  return std::min(o.max_tokens, std::max(kUnaskedAnswerTokens, o.min_tokens));
}

std::vector<std::int32_t> ending_ids(const SamplingOptions& o,
                                     std::span<const std::int32_t> stop_ids) {
  std::vector<std::int32_t> ids = o.stop_token_ids;
  if (!o.ignore_eos) ids.insert(ids.end(), stop_ids.begin(), stop_ids.end());
  return ids;
}

Status validate(const SamplingOptions& o, std::int32_t vocab_size,
                std::span<const std::int32_t> stop_ids) {
  if (o.max_tokens < 1) return Status::invalid("max_tokens", "must be at least 1");
  if (!(o.temperature >= 0 && o.temperature <= 100))
    return Status::invalid("temperature", "must lie in [0, 100]");
  if (!(o.top_p > 0 && o.top_p <= 1)) return Status::invalid("top_p", "must lie in (0, 1]");
  if (o.top_k < 0) return Status::invalid("top_k", "must not be negative; 0 switches it off");
  if (!(o.min_p >= 0 && o.min_p <= 1)) return Status::invalid("min_p", "must lie in [0, 1]");
  for (std::size_t i = 0; i < o.stop.size(); ++i) {
    if (o.stop[i].empty())
      return Status::invalid("stop[" + std::to_string(i) + "]", "must not be empty");
  }
  const auto in_vocabulary = [&](std::int32_t id) { return id >= 0 && id < vocab_size; };
  const std::string ids = "is no token id; they are integers from 0 to " +
                          std::to_string(vocab_size - 1);
  for (std::size_t i = 0; i < o.stop_token_ids.size(); ++i) {
    if (!in_vocabulary(o.stop_token_ids[i]))
      return Status::invalid("stop_token_ids[" + std::to_string(i) + "]",
                             std::to_string(o.stop_token_ids[i]) + " " + ids);
  }
  const auto is_penalty = [](float x) { return x >= -2 && x <= 2; };
  if (!is_penalty(o.frequency_penalty))
    return Status::invalid("frequency_penalty", "must lie in [-2, 2]");
  if (!is_penalty(o.presence_penalty))
    return Status::invalid("presence_penalty", "must lie in [-2, 2]");
  if (!(o.repetition_penalty > 0 && o.repetition_penalty <= 10))
    return Status::invalid("repetition_penalty", "must lie in (0, 10]; 1 switches it off");
  if (o.min_tokens < 0 || o.min_tokens > o.max_tokens)
    return Status::invalid("min_tokens", "must lie between 0 and max_tokens");
  for (std::size_t i = 0; i < o.allowed_tokens.size(); ++i) {
    if (!in_vocabulary(o.allowed_tokens[i]))
      return Status::invalid("allowed_token_ids[" + std::to_string(i) + "]",
                             std::to_string(o.allowed_tokens[i]) + " " + ids);
  }
  // A grammar says itself where an answer may end.
  const bool must_go_on = !o.grammar && to_size(o.min_tokens) > o.forced_tokens.size();
  if (must_go_on && !o.allowed_tokens.empty()) {
    const auto ending = ending_ids(o, stop_ids);
    const auto ends = [&](std::int32_t id) {
      return std::find(ending.begin(), ending.end(), id) != ending.end();
    };
    if (std::all_of(o.allowed_tokens.begin(), o.allowed_tokens.end(), ends))
      return Status::invalid("min_tokens",
                             "no token is left to begin with: all of allowed_token_ids end the "
                             "answer, which must have " +
                                 std::to_string(o.min_tokens) +
                                 " tokens first; allow another token, or leave min_tokens out");
  }
  for (const auto& [id, bias] : o.logit_bias) {
    const std::string field = "logit_bias." + std::to_string(id);
    if (!in_vocabulary(id)) return Status::invalid(field, std::to_string(id) + " " + ids);
    if (!(bias >= -100 && bias <= 100)) return Status::invalid(field, "must lie in [-100, 100]");
  }
  if (o.grammar && !o.forced_tokens.empty())
    return Status::invalid("forced_tokens", "cannot be combined with a grammar");
  if (o.top_logprobs && (*o.top_logprobs < 0 || *o.top_logprobs > kMaxTopLogprobs))
    return Status::invalid("top_logprobs",
                           "must lie between 0 and " + std::to_string(kMaxTopLogprobs));
  return {};
}

TokenLogprobs token_logprobs(std::span<const float> logits, std::int32_t token_id,
                             std::int32_t num_top) {
  float largest = -std::numeric_limits<float>::infinity();
  for (const float x : logits) largest = x > largest ? x : largest;
  TokenLogprobs out;
  double total = 0;
  for (const float x : logits)
    total += std::isnan(x) ? 0 : std::exp(static_cast<double>(x) - largest);
  const double log_total = std::log(total);
  const auto logprob = [&](std::int32_t id) {
    const float x = logits[at(id)];
    // The floor keeps the value finite, as JSON requires.
    const double p = std::isnan(x) || !std::isfinite(largest)
                         ? kLogprobFloor
                         : static_cast<double>(x) - largest - log_total;
    return TokenLogprob{id, static_cast<float>(std::max(p, kLogprobFloor))};
  };
  out.chosen = logprob(token_id);
  const auto count = std::min(to_size(std::max(num_top, 0)), logits.size());
  if (count == 0) return out;
  // A heap with the worst of the best at the front.
  std::vector<std::pair<float, std::int32_t>> best;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::pair<float, std::int32_t> candidate{
        std::isnan(logits[i]) ? -std::numeric_limits<float>::infinity() : logits[i],
        static_cast<std::int32_t>(i)};
    if (best.size() == count) {
      if (!before(candidate, best.front())) continue;
      std::pop_heap(best.begin(), best.end(), before);
      best.pop_back();
    }
    best.push_back(candidate);
    std::push_heap(best.begin(), best.end(), before);
  }
  std::sort_heap(best.begin(), best.end(), before);
  for (const auto& [x, id] : best) out.top.push_back(logprob(id));
  return out;
}

Sampler::Sampler(const SamplingOptions& options) : options_(options) {
  std::uint64_t seed = options.seed ? *options.seed : 0;
  if (!options.seed) {
    std::random_device device;
    seed = (static_cast<std::uint64_t>(device()) << 32) | device();
  }
  for (std::uint64_t& s : state_) s = splitmix64(seed);
}

std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (!changes_logits() && counts_.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  const float repeated = options_.repetition_penalty;
  for (const auto& [id, count] : counts_) {
    if (to_size(id) >= adjusted_.size()) continue;
    float& logit = adjusted_[at(id)];
    if (repeated != 1) logit = logit > 0 ? logit / repeated : logit * repeated;
    if (count > 0)
      logit -= options_.frequency_penalty * static_cast<float>(count) + options_.presence_penalty;
  }
  for (const auto& [id, bias] : options_.logit_bias) adjusted_[at(id)] += bias;
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  if (!options_.allowed_tokens.empty()) {
    permitted_.assign(adjusted_.size(), false);
    const auto permit = [&](std::int32_t id) { permitted_[at(id)] = true; };
    std::for_each(options_.allowed_tokens.begin(), options_.allowed_tokens.end(), permit);
    std::for_each(ending_.begin(), ending_.end(), permit);
    for (std::size_t i = 0; i < adjusted_.size(); ++i)
      if (!permitted_[i]) adjusted_[i] = kNever;
  }
  for (const std::int32_t id : banned_) adjusted_[at(id)] = kNever;
  return adjusted_;
}

bool Sampler::changes_logits() const {
  return !options_.logit_bias.empty() || options_.frequency_penalty != 0 ||
         options_.presence_penalty != 0 || options_.repetition_penalty != 1 ||
         !options_.allowed_tokens.empty() || !banned_.empty();
}

void Sampler::record(std::int32_t token_id) {
  uniform_.reset();
  if (options_.frequency_penalty != 0 || options_.presence_penalty != 0 ||
      options_.repetition_penalty != 1)
    ++counts_[token_id];
}

void Sampler::record_prompt(std::span<const std::int32_t> token_ids) {
  if (options_.repetition_penalty == 1) return;
  for (const std::int32_t id : token_ids)
    if (id >= 0) counts_.try_emplace(id, 0);
}

void Sampler::end_with(std::span<const std::int32_t> token_ids) {
  ending_.assign(token_ids.begin(), token_ids.end());
}

void Sampler::ban(std::span<const std::int32_t> token_ids) {
  banned_.assign(token_ids.begin(), token_ids.end());
}

std::int32_t Sampler::sample(std::span<const float> logits) { return draw(adjusted(logits)); }

std::int32_t Sampler::sample(std::span<const float> logits,
                             std::span<const std::uint64_t> allowed) {
  const auto shaped = adjusted(logits);
  if (shaped.data() == logits.data()) adjusted_.assign(logits.begin(), logits.end());
  bool any = false;
  for (std::size_t i = 0; i < adjusted_.size(); ++i) {
    const bool may = i / 64 < allowed.size() && (allowed[i / 64] >> (i % 64) & 1) != 0;
    any = any || may;
    // Allowed tokens stay possible, however unlikely the model or allowed_tokens makes them.
    adjusted_[i] = may ? std::max(std::isnan(adjusted_[i]) ? kLeast : adjusted_[i], kLeast)
                       : -std::numeric_limits<float>::infinity();
  }
  return any ? draw(adjusted_) : -1;
}

SampleRule Sampler::rule() {
  const bool greedy = options_.temperature <= 0;
  if (!uniform_ && !greedy) uniform_ = uniform(state_);
  return {options_.temperature, options_.top_k, options_.top_p, options_.min_p,
          uniform_.value_or(0)};
}

std::optional<SampleRule> Sampler::next_rule() {
  if (changes_logits()) return std::nullopt;
  return rule();
}

std::int32_t Sampler::draw(std::span<const float> logits) {
  const SampleRule next = rule();
  uniform_.reset();
  return sample_token(logits, next, scratch_);
}

}  // namespace quire
