// flat is the exact counterpart of CTkvr: it scores every host row in every step and attends to the
// best. It is the upper bound of an index of rows.
#include <cmath>
#include <numeric>

#include "base/stopwatch.h"
#include "engine/model/hook_compute.h"
#include "engine/retrieve/device_choice.h"
#include "engine/retrieve/rows/row_choice.h"
#include "engine/retrieve/rows/row_retriever.h"
#include "engine/retrieve/step_attention.h"

namespace quire {
namespace {

class FlatRetriever final : public RowRetriever, public DeviceBudgeted {
 public:
  explicit FlatRetriever(const RowPolicy& policy) : RowRetriever({}, policy) {}

  ChoosingNeed choosing_need(const RetrieveShape& shape) const override {
    ChoosingNeed need = DeviceChoice::need(shape, 1, 0,
                                           policy().sink + policy().chosen + most_local(policy()));
    need.fixed_bytes += shape.num_kv_heads * std::int64_t{policy().chosen} *
                        static_cast<std::int64_t>(sizeof(std::int32_t));
    return need;
  }

 protected:
  void begin_sequence(const AssembledPrompt&) override {
    there_ = DeviceChoice(memory_on_device());
    choices_ = std::vector<Head>(static_cast<std::size_t>(sequence().num_kv_heads));
  }

  Result<HostCounts> attend_host(const HostStep& step) override {
    const Stopwatch watch;
    Head& head = choices_[static_cast<std::size_t>(step.kv_head)];
    head.rows.resize(static_cast<std::size_t>(step.host.end - step.host.begin));
    std::iota(head.rows.begin(), head.rows.end(), static_cast<std::int32_t>(step.host.begin));
    QUIRE_RETURN_IF_ERROR(head.choice.score(step, head.rows));
    const auto chosen = head.choice.best(policy().chosen);
    const double choose_ms = watch.ms();
    QUIRE_RETURN_IF_ERROR(head.choice.attend(step, chosen));
    return HostCounts{static_cast<std::int64_t>(head.rows.size()),
                      static_cast<std::int64_t>(chosen.size()), choose_ms};
  }

  bool chooses_on_device() const override { return true; }
  Status attend_on_device(const RetrieveStep& step, const KvView& kv, RowRange host) override {
    Compute& compute = *step.compute;
    const std::int32_t kv_heads = sequence().num_kv_heads;
    const std::int64_t rows = host.end - host.begin, chosen = policy().chosen;
    QUIRE_RETURN_IF_ERROR(device_chosen_.reserve(memory_on_device(), kv_heads * chosen));
    QUIRE_ASSIGN_OR_RETURN(float* const scores, there_.scores(step.num_heads, rows));
    QUIRE_RETURN_IF_ERROR(
        compute.hooks()->key_products({.q = step.query,
                                       .num_heads = step.num_heads,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim)),
                                       .kv = kv,
                                       .first_row = host.begin,
                                       .num_rows = rows,
                                       .scores = scores,
                                       .ld_scores = rows}));
    QUIRE_RETURN_IF_ERROR(there_.choose(compute, kv_heads, step.num_heads / kv_heads, rows,
                                        CandidateVote::kMaxLogSoftmax, chosen,
                                        device_chosen_.data()));
    CandidateRowsArgs attended{};
    attended.num_units = kv.num_rows;
    attended.num_first = attended.first_candidate = host.begin;
    attended.last_from = host.end;
    attended.chosen = device_chosen_.data();
    attended.num_chosen = chosen;
    attended.num_kv_heads = kv_heads;
    attended.most_rows = host.begin + chosen + kv.num_rows - host.end;
    QUIRE_ASSIGN_OR_RETURN(const DeviceLists lists, there_.lists(compute, attended));
    return attend_to_lists(step, kv, lists);
  }

 private:
  struct Head {
    std::vector<std::int32_t> rows;
    RowChoice choice;
  };
  std::vector<Head> choices_;  ///< [num_kv_heads]
  DeviceChoice there_;
  ComputeBuffer<std::int32_t> device_chosen_;  ///< [num_kv_heads, policy().chosen]
};

}  // namespace

void register_flat(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("flat", OptionTable<RowPolicy>().add(row_options()),
                 [](const RowPolicy& policy) { return std::make_unique<FlatRetriever>(policy); });
}

}  // namespace quire
