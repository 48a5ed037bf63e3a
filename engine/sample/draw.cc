#include "engine/sample/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

using Candidate = SampleScratch::Candidate;

/// Weight of the largest logit.
constexpr float kOne = 1099511627776.0f;

/// Orders by larger logit, then by lower id.
bool before(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
}

std::uint64_t sum_of(const std::vector<Candidate>& candidates) {
  std::uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += c.weight;
  return sum;
}

/// Keeps the smallest set of the most likely tokens that weighs at least top_p of the total.
void keep_most_likely(std::vector<Candidate>& candidates, float top_p) {
  const auto wanted = static_cast<std::uint64_t>(
      std::ceil(static_cast<double>(sum_of(candidates)) * static_cast<double>(top_p)));
  const auto behind = [](const Candidate& a, const Candidate& b) { return before(b, a); };
  std::make_heap(candidates.begin(), candidates.end(), behind);
  auto end = candidates.end();
  std::uint64_t reached = 0;
  while (end != candidates.begin() && reached < wanted) {
    std::pop_heap(candidates.begin(), end, behind);
    reached += (--end)->weight;
  }
  candidates.erase(candidates.begin(), end);
}

}  // namespace

std::int32_t sample_token(std::span<const float> logits, const SampleRule& rule,
                          SampleScratch& scratch) {
  if (!(rule.temperature > 0))
    return static_cast<std::int32_t>(argmax(logits.data(), count_of(logits)));
  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -std::numeric_limits<float>::infinity())
      candidates.push_back({logits[i], static_cast<std::int32_t>(i), 0});
  }
  if (candidates.empty()) return 0;
  const auto best = std::min_element(candidates.begin(), candidates.end(), before);
  // Finite, because the largest logit's distance of 0 is multiplied with it.
  const float top = best->logit,
              scale = std::min(1.0f / rule.temperature, std::numeric_limits<float>::max());
  if (!std::isfinite(top)) return best->id;
  if (rule.top_k > 0 && static_cast<std::size_t>(rule.top_k) < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + rule.top_k, candidates.end(), before);
    candidates.resize(to_size(rule.top_k));
  }
  const auto share_of = [&](const Candidate& c) { return std::exp((c.logit - top) * scale); };
  for (Candidate& c : candidates) c.weight = static_cast<std::uint64_t>(share_of(c) * kOne + 0.5f);
  if (rule.top_p < 1) keep_most_likely(candidates, rule.top_p);
  if (rule.min_p > 0)
    std::erase_if(candidates, [&](const Candidate& c) { return share_of(c) < rule.min_p; });
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  const std::uint64_t total = sum_of(candidates);
  // The product may round up.
  const std::uint64_t point = std::min(
      static_cast<std::uint64_t>(rule.uniform * static_cast<double>(total)), total - 1);
  std::uint64_t passed = 0;
  for (const Candidate& c : candidates) {
    passed += c.weight;
    if (point < passed) return c.id;
  }
  return candidates.back().id;
}

}  // namespace quire
