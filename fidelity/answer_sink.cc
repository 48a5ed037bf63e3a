#include "fidelity/answer_sink.h"

#include <algorithm>

#include "base/index.h"
#include "fidelity/score.h"

namespace quire {

std::vector<AnswerSpan> spans_of(const AnswerSink& reference, const AnswerSink& run,
                                 std::int32_t span_tokens) {
  const std::size_t all = std::min(reference.first_logits.size(), run.first_logits.size()),
                    each = to_size(span_tokens);
  std::vector<AnswerSpan> out;
  std::vector<float> log_p, log_q;
  for (std::size_t begin = 0; begin < all; begin += each) {
    const std::size_t end = std::min(begin + each, all);
    double same = 0, kl = 0;
    for (std::size_t i = begin; i < end; ++i) {
      same += reference.choices[i] == run.choices[i] ? 1 : 0;
      log_softmax(reference.first_logits[i], log_p);
      log_softmax(run.first_logits[i], log_q);
      kl += kl_divergence(log_p, log_q);
    }
    out.push_back({same / static_cast<double>(end - begin), kl / static_cast<double>(end - begin)});
  }
  return out;
}

}  // namespace quire
