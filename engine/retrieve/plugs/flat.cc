// flat is the exact counterpart of CTkvr: it scores every host row in every step and attends to the
// best. It is the upper bound of an index of rows.
#include <cmath>

#include "base/stopwatch.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/rows/row_retriever.h"
#include "engine/retrieve/step_attention.h"

namespace quire {
namespace {

class FlatRetriever final : public RowRetriever, public DeviceBudgeted {
 public:
  explicit FlatRetriever(const RowPolicy& policy) : RowRetriever({}, policy) {}

  ChoosingNeed choosing_need(const RetrieveShape& shape) const override {
    ChoosingNeed need = ChoiceBuffers::need(shape, 1, 0,
                                            policy().sink + policy().chosen + most_local(policy()));
    need.fixed_bytes += shape.num_kv_heads * std::int64_t{policy().chosen} *
                        static_cast<std::int64_t>(sizeof(std::int32_t));
    return need;
  }

 protected:
  void begin_sequence(const AssembledPrompt&) override {
    buffers_ = ChoiceBuffers(buffer_memory());
  }

  bool chooses_by_votes() const override { return true; }
  Status attend_by_votes(const RetrieveStep& step, const KvView& kv, RowRange host) override {
    const Stopwatch watch;
    Compute& compute = *step.compute;
    const std::int32_t kv_heads = sequence().num_kv_heads;
    const std::int64_t rows = host.end - host.begin, chosen = policy().chosen;
    QUIRE_RETURN_IF_ERROR(chosen_.reserve(buffer_memory(), kv_heads * chosen));
    QUIRE_ASSIGN_OR_RETURN(float* const scores, buffers_.scores(step.num_heads, rows));
    QUIRE_RETURN_IF_ERROR(
        compute.choice().key_products({.q = step.query,
                                       .num_heads = step.num_heads,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim)),
                                       .kv = kv,
                                       .first_row = host.begin,
                                       .num_rows = rows,
                                       .scores = scores,
                                       .ld_scores = rows}));
    QUIRE_RETURN_IF_ERROR(buffers_.choose(compute, kv_heads, step.num_heads / kv_heads, rows,
                                          CandidateVote::kMaxLogSoftmax, chosen, chosen_.data()));
    CandidateRowsArgs attended{};
    attended.num_units = kv.num_rows;
    attended.num_first = attended.first_candidate = host.begin;
    attended.last_from = host.end;
    attended.chosen = chosen_.data();
    attended.num_chosen = chosen;
    attended.num_kv_heads = kv_heads;
    attended.most_rows = host.begin + chosen + kv.num_rows - host.end;
    QUIRE_ASSIGN_OR_RETURN(const ChosenLists lists, buffers_.lists(compute, attended));
    count_choosing(step, stats_, watch.ms());
    return attend_to_lists(step, kv, lists);
  }

 private:
  ChoiceBuffers buffers_;
  ComputeBuffer<std::int32_t> chosen_;  ///< [num_kv_heads, policy().chosen]
};

}  // namespace

void register_flat(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("flat", OptionTable<RowPolicy>().add(row_options()),
                 [](const RowPolicy& policy) { return std::make_unique<FlatRetriever>(policy); });
}

}  // namespace quire
