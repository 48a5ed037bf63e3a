#include "engine/query/prompt_reading.h"

#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "kernels/attention/attention.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

/// Largest number of logits of one chunk if all of its rows need them.
constexpr std::int64_t kMostLogits = std::int64_t{1} << 24;

DType cached_dtype(const Model& model) {
  const DType stored = model.options().kv_dtype;
  return model.options().weights == WeightFormat::kF32
             ? stored
             : cached_kv_dtype(stored, model.config().head_dim);
}

}  // namespace

std::int64_t PromptReading::tokens_over(Draft& draft, std::int64_t prompt_tokens,
                                        std::int64_t num_ahead) {
  return std::max<std::int64_t>(0,
                                prompt_tokens + num_ahead - draft.reader().rope().max_positions());
}

PromptReading::PromptReading(Draft& draft, PromptCompressor& compressor,
                             std::vector<std::int32_t> prompt_ids, std::int32_t num_rows_ahead,
                             std::int32_t num_answer_tokens)
    : draft_(draft),
      model_(draft.reader()),
      compressor_(compressor),
      prompt_(std::move(prompt_ids)),
      rows_ahead_(num_rows_ahead),
      answer_tokens_(num_answer_tokens),
      pool_(
          PageFormat{model_.config().num_kv_heads, model_.config().head_dim, cached_dtype(model_)},
          0),
      cache_(pool_, model_.config().num_layers) {}

Status PromptReading::step(std::int32_t chunk_tokens) {
  QUIRE_CHECK(!done_, "a prompt is read once");
  const Status status = read_ < prompt_.size() ? read_chunk(chunk_tokens) : run_answer();
  done_ = !status.ok() || over();
  return status;
}

bool PromptReading::over() const {
  if (read_ < prompt_.size()) return false;
  const auto& ends = draft_.tokenizer().eos_ids();
  const bool ended = !answer_.empty() &&
                     std::binary_search(ends.begin(), ends.end(), answer_.back());
  // The last token need not run for its own sake.
  return static_cast<std::int32_t>(ran_) >= std::max(rows_ahead_, answer_tokens_ - 1) ||
         (ended && ran_ + 1 == answer_.size());
}

Status PromptReading::run_answer() {
  const std::int32_t only = 0;
  const bool more = wants_more();
  const std::size_t at = ran_++;
  QUIRE_RETURN_IF_ERROR(run(std::span(answer_).subspan(at, 1),
                            static_cast<std::int64_t>(prompt_.size() + at),
                            std::span(&only, more ? 1 : 0)));
  if (more) pick(0);
  return {};
}

Status PromptReading::read_chunk(std::int32_t chunk_tokens) {
  auto most = static_cast<std::int64_t>(chunk_tokens);
  const bool all_logits = compressor_.wants_logits();
  const std::int64_t vocab = model_.config().vocab_size;
  if (all_logits) most = std::min(most, std::max<std::int64_t>(16, kMostLogits / vocab));
  const std::size_t n = std::min(to_size(most), prompt_.size() - read_);
  const bool last = read_ + n == prompt_.size();
  std::vector<std::int32_t> rows;
  if (all_logits) {
    rows.resize(n);
    std::iota(rows.begin(), rows.end(), 0);
  } else if (last && wants_more()) {
    rows = {static_cast<std::int32_t>(n) - 1};
  }
  QUIRE_RETURN_IF_ERROR(
      run(std::span(prompt_).subspan(read_, n), static_cast<std::int64_t>(read_), rows));
  if (all_logits) {
    std::vector<std::int32_t> next(prompt_.begin() + static_cast<std::ptrdiff_t>(read_) + 1,
                                   prompt_.begin() + static_cast<std::ptrdiff_t>(read_ + n));
    next.push_back(last ? -1 : prompt_[read_ + n]);
    compressor_.on_logits(static_cast<std::int64_t>(read_),
                          std::span(logits_).first(n * to_size(vocab)), next);
  }
  read_ += n;
  if (last && wants_more()) pick(count_of(rows) - 1);
  return {};
}

Status PromptReading::run(std::span<const std::int32_t> ids, std::int64_t first_position,
                          std::span<const std::int32_t> logit_rows) {
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first_position));
  const std::size_t wanted = logit_rows.size() * to_size(model_.config().vocab_size);
  if (logits_.size() < wanted) logits_.resize(wanted);
  ForwardRequest request{};
  request.token_ids = ids;
  request.positions = positions;
  request.cache = &cache_;
  request.logit_rows = logit_rows;
  request.logits = logits_.data();
  ForwardHook* hook = compressor_.observer();
  if (hook != nullptr && positions.back() >= compressor_.observed_from()) request.hook = hook;
  return forward(model_, request, workspace_);
}

/// Returns the most likely token after a row.
void PromptReading::pick(std::int64_t logit_row) {
  const std::int64_t vocab = model_.config().vocab_size;
  answer_.push_back(static_cast<std::int32_t>(
      argmax(logits_.data() + logit_row * vocab,
             std::min<std::int64_t>(draft_.tokenizer().vocab_size(), vocab))));
}

}  // namespace quire
