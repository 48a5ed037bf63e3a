#include "engine/stages/query_pass.h"

#include "base/clock.h"

#include <algorithm>
#include <numeric>

namespace quire {

/// Sums the raw queries of all rows per layer where they are computed, so that no layer
/// synchronizes.
class QueryPass::Capture final : public ForwardHook {
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
    QUIRE_RETURN_IF_ERROR(pass.compute->sum_columns({.x = pass.qkv.q,
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
    return compute.read(sums_.data(), static_cast<std::int64_t>(out.size()), out.data());
  }

 private:
  const std::int64_t dim_;
  const std::int32_t num_layers_;
  bool begun_ = false;
  ComputeBuffer<float> sums_;  ///< [num_layers, dim]
};

QueryPass::QueryPass(QueryRun& run, KvSupply& supply)
    : run_(run), placement_(run, supply, Placement::Values::kKeep) {
  const EngineFacts& facts = run.core.facts;
  const std::int64_t dim = std::int64_t{facts.num_heads} * facts.shape.head_dim;
  result_.mean_query.resize(static_cast<std::size_t>(facts.shape.num_layers * dim));
  result_.last_position = run.execution.suffix_position +
                          static_cast<std::int64_t>(run.request.suffix_ids.size()) - 1;
  for (std::int32_t i = 0; i < run.num_contexts(); ++i)
    result_.context_position.push_back(run.first_position(i));
  capture_ = std::make_unique<Capture>(dim, facts.shape.num_layers);
}

QueryPass::~QueryPass() = default;

bool QueryPass::ready() const {
  return stage_ != Stage::kPlace || placement_.ready() || placement_.done();
}

Status QueryPass::step() {
  switch (stage_) {
    case Stage::kPrefix:
      if (computed_ < run_.request.prefix_ids.size())
        return compute(run_.request.prefix_ids, 0, nullptr);
      return end_prefix();
    case Stage::kPlace:
      if (!placement_.done()) return placement_.step();
      stage_ = Stage::kQuestion;
      computed_ = 0;
      return {};
    case Stage::kQuestion:
      QUIRE_RETURN_IF_ERROR(capture_->begin(run_.core.model->compute().memory()));
      QUIRE_RETURN_IF_ERROR(
          compute(run_.request.suffix_ids, run_.execution.suffix_position, capture_.get()));
      return computed_ == run_.request.suffix_ids.size() ? end() : Status();
    case Stage::kDone:
      break;
  }
  return {};
}

Status QueryPass::end_prefix() {
  prefix_rows_ = run_.cache->num_rows(0);
  std::vector<std::int32_t> contexts;
  for (std::int32_t i = 0; i < run_.num_contexts(); ++i) {
    const ContextSource source = run_.work(i).source;
    if (source == ContextSource::kStored || source == ContextSource::kAlone) contexts.push_back(i);
  }
  QUIRE_RETURN_IF_ERROR(placement_.begin(std::move(contexts)));
  stage_ = Stage::kPlace;
  return {};
}

Status QueryPass::compute(const std::vector<std::int32_t>& ids, std::int32_t first_position,
                          ForwardHook* hook) {
  const auto started = Clock::now();
  const std::size_t n = std::min(static_cast<std::size_t>(run_.core.chunk_tokens),
                                 ids.size() - computed_);
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

Status QueryPass::end() {
  const auto n = static_cast<float>(run_.request.suffix_ids.size());
  QUIRE_RETURN_IF_ERROR(capture_->read(run_.core.model->compute(), result_.mean_query));
  for (float& x : result_.mean_query) x /= n;
  run_.cache->truncate_all(prefix_rows_);
  stage_ = Stage::kDone;
  return {};
}

}  // namespace quire
