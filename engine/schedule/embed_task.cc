#include "engine/schedule/embed_task.h"

#include "base/clock.h"
#include "base/index.h"
#include "base/status.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace quire {

EmbedTask::EmbedTask(QueryResources& core, EmbedRequest request, Done done)
    : core_(core), request_(std::move(request)), done_(std::move(done)) {}

std::int64_t EmbedTask::working_bytes() const {
  const auto rows = count_of(request_.token_ids);
  return (rows + kPageTokens - 1) / kPageTokens * core_.pool->format().page_bytes() *
         core_.facts.shape.num_layers;
}

void EmbedTask::fail(const Status& status) {
  cache_.reset();
  if (!done_) return;
  try {
    std::exchange(done_, nullptr)(status);
  } catch (...) {
    (void)exception_status("what follows an embedding");
  }
}

Status EmbedTask::suspend() { return cache_ ? cache_->move_out() : Status(); }

Status EmbedTask::resume() { return cache_ ? cache_->move_in() : Status(); }

bool EmbedTask::step() {
  if (cancelled()) {
    fail(Status::cancelled("the embedding was cancelled"));
    return true;
  }
  if (const Status status = run_chunk(); !status.ok()) {
    fail(status);
    return true;
  }
  if (next_ < request_.token_ids.size()) return false;
  // Before the callback is taken: without memory for the result fail() must still find it.
  std::vector<float> result = mean();
  cache_.reset();
  std::exchange(done_, nullptr)(std::move(result));
  return true;
}

Status EmbedTask::run_chunk() {
  const auto started = Clock::now();
  const auto hidden_size = to_size(core_.model->config().hidden_size);
  if (!cache_) {
    cache_.emplace(*core_.pool, core_.facts.shape.num_layers);
    sums_.assign(hidden_size, 0.0);
  }
  const std::size_t n = std::min(to_size(core_.chunk_tokens), request_.token_ids.size() - next_);
  std::vector<std::int32_t> positions(n), rows(n);
  std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(next_));
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<float> hidden(n * hidden_size), normed(n * hidden_size);
  ForwardRequest request{};
  request.token_ids = std::span(request_.token_ids).subspan(next_, n);
  request.positions = positions;
  request.cache = &*cache_;
  request.logit_rows = rows;
  request.hidden = hidden.data();
  QUIRE_RETURN_IF_ERROR(forward(*core_.model, request, core_.workspace));
  QUIRE_RETURN_IF_ERROR(
      core_.model->final_norm(hidden.data(), static_cast<std::int64_t>(n), normed.data()));
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t c = 0; c < hidden_size; ++c) sums_[c] += double{normed[r * hidden_size + c]};
  }
  next_ += n;
  core_.meter->add_prefill(static_cast<std::int64_t>(n), ms_between(started, Clock::now()));
  return {};
}

std::vector<float> EmbedTask::mean() const {
  double squares = 0;
  for (const double x : sums_) squares += x * x;
  // A sum of normed states has length 0 only if they cancel out, and such a text has no direction.
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  std::vector<float> out(sums_.size());
  std::transform(sums_.begin(), sums_.end(), out.begin(),
                 [scale](double x) { return static_cast<float>(x * scale); });
  return out;
}

}  // namespace quire
