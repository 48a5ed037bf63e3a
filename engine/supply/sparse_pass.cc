#include "engine/supply/sparse_pass.h"

#include <numeric>

#include "base/index.h"

namespace quire {
namespace {

std::vector<std::int32_t> joined(std::span<const std::int32_t> front,
                                 std::span<const std::int32_t> back) {
  std::vector<std::int32_t> out(front.begin(), front.end());
  out.insert(out.end(), back.begin(), back.end());
  return out;
}

std::vector<std::int32_t> positions_behind(std::int32_t position, std::size_t count) {
  std::vector<std::int32_t> out(count);
  std::iota(out.begin(), out.end(), position + 1);
  return out;
}

}  // namespace

SparsePass::SparsePass(QueryRun& run, std::span<const std::int32_t> ids,
                       std::span<const std::int32_t> positions, std::span<const std::int32_t> ahead,
                       float* logits)
    : run_(run),
      num_ahead_(count_of(ahead)),
      ids_(joined(ids, ahead)),
      positions_(joined(positions, positions_behind(positions.back(), ahead.size()))),
      last_row_(static_cast<std::int32_t>(ids.size()) - 1),
      hooks_(run.compressor->observer(), run.queries.get()),
      pass_(*run.core.model,
            {.token_ids = ids_,
             .positions = positions_,
             .cache_rows = {},
             .cache = &*run.cache,
             .hook = &hooks_,
             .tap = run.head_track.get(),
             .logit_rows = std::span(&last_row_, 1),
             .logits = logits},
            workspace_) {}

Status SparsePass::step() {
  QUIRE_RETURN_IF_ERROR(pass_.step());
  return pass_.done() ? end() : Status();
}

Status SparsePass::end() {
  WorkingCache& cache = *run_.cache;
  for (std::int32_t layer = 0; layer < cache.num_layers() && num_ahead_ > 0; ++layer)
    cache.truncate(layer, cache.num_rows(layer) - num_ahead_);
  run_.stats.lookahead_tokens += num_ahead_;
  SparsePrefill& sparse = *run_.plan.sparse_prefill;
  const SparseReport report = run_.compressor->sparse_report();
  sparse.tokens = report.rows;
  sparse.attended_share = report.attended_share;
  if (!run_.head_track) return {};
  const auto n = to_size(num_rows() - num_ahead_);
  return run_.head_track->add_computed(std::span(ids_).first(n), std::span(positions_).first(n));
}

}  // namespace quire
