// The CPU versions of the kernels need libraries that a bare GPU machine lacks, and are tested elsewhere: here the references stand in for them, so that the
// parity tests are the same everywhere.
#include <span>
#include <vector>

#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/attention_mass.h"
#include "kernels/attention_rows.h"
#include "kernels/attention_scores.h"
#include "kernels/attention_stats.h"
#include "kernels/block_summary.h"
#include "kernels/kv.h"
#include "kernels/norm.h"
#include "kernels/page_bounds.h"
#include "kernels/rope.h"
#include "kernels/topk.h"

namespace quire {

Status rms_norm(const RmsNormArgs& args) { return rms_norm_reference(args); }
Status swiglu(const SwigluArgs& args) { return swiglu_reference(args); }
void add_inplace(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}
Status rope_rotate(const RopeTable& table, const RopeRotateArgs& args) { return rope_rotate_reference(table, args); }
Status kv_place(const RopeTable& table, const KvPlaceArgs& args) { return kv_place_reference(table, args); }
Status kv_pack(const KvPackArgs& args) { return kv_pack_reference(args); }
Status block_summary(const RopeTable& table, const BlockSummaryArgs& args) { return block_summary_reference(table, args); }
Status attention(const AttentionArgs& args) { return attention_reference(args); }
Status attention_rows(const AttentionRowsArgs& args) { return attention_rows_reference(args); }
Status attention_scores(const AttentionScoresArgs& args) { return attention_scores_reference(args); }
Status attention_mass(const AttentionMassArgs& args) { return attention_mass_reference(args); }
Status attention_stats(const AttentionStatsArgs& args) { return attention_stats_reference(args); }
Status page_bounds(const PageBoundsArgs& args) { return page_bounds_reference(args); }
Status page_scores(const PageScoresArgs& args) { return page_scores_reference(args); }
std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k) { return top_k_reference(scores, k); }
std::int64_t argmax(const float* x, std::int64_t n) { return top_k_reference(std::span(x, static_cast<std::size_t>(n)), 1)[0]; }

}  // namespace quire
