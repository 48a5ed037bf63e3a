#include "engine/stages/decode_stage.h"

#include <memory>
#include <utility>

#include "engine/answer/attribution.h"
#include "engine/stages/attribute_stage.h"

namespace quire {

DecodeStage::DecodeStage(StageResources& shared, std::vector<float> logits,
                         std::int32_t first_position)
    : shared_(shared),
      answer_(shared.run, shared.sink, first_position),
      logits_(std::move(logits)),
      first_position_(first_position) {}

Status DecodeStage::begin() {
  started_ = Clock::now();
  shared_.run.stats.ttft_ms = ms_between(shared_.run.received, started_);
  take(answer_.advance(std::exchange(logits_, {})));
  return {};
}

void DecodeStage::decoded(const DecodeRow& row) {
  // The row is in the cache now.
  if (row.status.ok()) shared_.front->add_answered(row.token_id);
  take(answer_.decoded(row));
  std::int32_t input = row.drawn;
  std::size_t taken = 0;
  for (; taken < row.drawn_ahead.size() && !end_; ++taken) {
    shared_.front->add_answered(input);
    input = row.drawn_ahead[taken];
    take(answer_.followed(input));
  }
  drop_rows(row.drawn_ahead.size() - taken);
}

/// Drops the last rows of the cache, whose tokens come behind the end of the answer.
void DecodeStage::drop_rows(std::size_t count) {
  if (count == 0) return;
  WorkingCache& cache = *shared_.run.cache;
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer)
    cache.truncate(layer, cache.num_rows(layer) - static_cast<std::int64_t>(count));
}

void DecodeStage::take(std::optional<Answer::End> end) {
  if (!end) return;
  end_ = std::move(end);
  enter_time(Clock::now());
}

void DecodeStage::enter_time(Clock::time_point now) {
  shared_.run.stats.decode_ms = ms_between(started_, now);
  shared_.run.add_span("decode", started_, now);
}

bool DecodeStage::attributes() const {
  const QueryRun& run = shared_.run;
  const bool rows_dropped = run.plan.compression && run.plan.compression->dropped;
  return run.request.attribute && !rows_dropped && AttributionPass::possible(run, answer_.tokens());
}

AfterStage DecodeStage::next() {
  if (end_->status.ok() && attributes())
    return {
        std::make_unique<AttributeStage>(shared_, answer_.tokens(), first_position_, end_->reason)};
  return {nullptr, std::move(end_->status), end_->reason};
}

void DecodeStage::query_ends(Clock::time_point now, bool suspended) {
  if (!end_) enter_time(now);
  if (!suspended) shared_.front->keep();
}

}  // namespace quire
