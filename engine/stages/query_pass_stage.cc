#include "engine/stages/query_pass_stage.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/index.h"
#include "engine/stages/select_stage.h"

namespace quire {

/// Sums the raw queries of all rows per layer where they are computed, so that no layer
/// synchronizes.
class QueryPassStage::Capture final : public ForwardHook {
 public:
  Capture(std::int64_t dim, std::int32_t num_layers) : dim_(dim), num_layers_(num_layers) {}

  /// Allocates the sums before the first row. Errors: kResourceExhausted.
  Status begin(const std::shared_ptr<ComputeMemory>& memory) {
    if (begun_) return {};
    QUIRE_RETURN_IF_ERROR(sums_.reserve(memory, num_layers_ * dim_));
    std::fill_n(sums_.data(), num_layers_ * dim_, 0.0f);
    begun_ = true;
    return {};
  }
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  Status after_projection(LayerPass& pass) override {
    QUIRE_RETURN_IF_ERROR(
        pass.compute->linear().sum_columns({.x = pass.qkv.q,
                                            .rows = pass.qkv.rows,
                                            .dim = dim_,
                                            .ldx = pass.qkv.ld,
                                            .sums = sums_.data() + pass.layer * dim_}));
    // The last layer's output is not used.
    if (pass.layer == num_layers_ - 1)
      std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }
  Status read(Compute& compute, std::vector<float>& out) const {
    return compute.read(sums_.data(), count_of(out), out.data());
  }

 private:
  const std::int64_t dim_;
  const std::int32_t num_layers_;
  bool begun_ = false;
  ComputeBuffer<float> sums_;  ///< [num_layers, dim]
};

QueryPassStage::QueryPassStage(StageResources& shared)
    : SuppliedStage(shared),
      run_(shared.run),
      placement_(shared.run, *shared.supply, Placement::Values::kKeep) {
  const EngineFacts& facts = run_.core.facts;
  const std::int64_t dim = std::int64_t{facts.num_heads} * facts.shape.head_dim;
  result_.mean_query.resize(to_size(facts.shape.num_layers * dim));
  result_.last_position = run_.execution.suffix_position + count_of(run_.request.suffix_ids) - 1;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i)
    result_.context_position.push_back(run_.first_position(i));
  capture_ = std::make_unique<Capture>(dim, facts.shape.num_layers);
}

QueryPassStage::~QueryPassStage() = default;

Status QueryPassStage::begin() {
  shared_.supply->ask_blocks(run_.execution.selection);
  return {};
}

bool QueryPassStage::has_work() {
  return part_ != Part::kPlace || placement_.ready() || placement_.done();
}

Status QueryPassStage::work() {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t taken, shared_.take_front());
  computed_ += to_size(taken);
  switch (part_) {
    case Part::kPrefix:
      if (computed_ < run_.request.prefix_ids.size())
        return compute(run_.request.prefix_ids, 0, nullptr);
      return end_prefix();
    case Part::kPlace:
      if (!placement_.done()) return placement_.step();
      part_ = Part::kQuestion;
      computed_ = 0;
      return {};
    case Part::kQuestion:
      QUIRE_RETURN_IF_ERROR(capture_->begin(run_.core.model->compute().memory()));
      QUIRE_RETURN_IF_ERROR(
          compute(run_.request.suffix_ids, run_.execution.suffix_position, capture_.get()));
      return computed_ == run_.request.suffix_ids.size() ? end_question() : Status();
    case Part::kDone:
      break;
  }
  return {};
}

Status QueryPassStage::end_prefix() {
  prefix_rows_ = run_.cache->num_rows(0);
  std::vector<std::int32_t> contexts;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    const ContextSource source = run_.work(i).source;
    if (source == ContextSource::kStored || source == ContextSource::kAlone) contexts.push_back(i);
  }
  QUIRE_RETURN_IF_ERROR(placement_.begin(std::move(contexts)));
  part_ = Part::kPlace;
  return {};
}

Status QueryPassStage::compute(const std::vector<std::int32_t>& ids, std::int32_t first_position,
                               ForwardHook* hook) {
  const auto started = Clock::now();
  const std::size_t n = std::min(to_size(run_.core.chunk_tokens), ids.size() - computed_);
  std::vector<std::int32_t> positions(n);
  std::iota(positions.begin(), positions.end(),
            first_position + static_cast<std::int32_t>(computed_));
  ForwardRequest request{};
  request.token_ids = std::span(ids).subspan(computed_, n);
  request.positions = positions;
  request.cache = &*run_.cache;
  request.hook = hook;
  // The question runs again after the selected blocks; the prefix stays.
  HeadTrack* track = hook == nullptr ? run_.head_track.get() : nullptr;
  request.tap = track;
  QUIRE_RETURN_IF_ERROR(forward(*run_.core.model, request, run_.core.workspace));
  if (track != nullptr) QUIRE_RETURN_IF_ERROR(track->add_computed(request.token_ids, positions));
  computed_ += n;
  const auto now = Clock::now();
  const double ms = ms_between(started, now);
  (hook != nullptr ? run_.stats.query_pass_ms : run_.stats.prefill_ms) += ms;
  run_.core.meter->add_prefill(static_cast<std::int64_t>(n), ms);
  run_.add_span(hook != nullptr ? "query_pass" : "prefix", started, now);
  return {};
}

Status QueryPassStage::end_question() {
  const auto n = static_cast<float>(run_.request.suffix_ids.size());
  QUIRE_RETURN_IF_ERROR(capture_->read(run_.core.model->compute(), result_.mean_query));
  for (float& x : result_.mean_query) x /= n;
  run_.cache->truncate_all(prefix_rows_);
  part_ = Part::kDone;
  return {};
}

AfterStage QueryPassStage::next() {
  return {std::make_unique<SelectStage>(shared_, std::move(result_))};
}

}  // namespace quire
