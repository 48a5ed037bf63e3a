#include <vector>

#include "base/index.h"
#include "engine/retrieve/retriever.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/attention/attention_rows.h"

namespace quire {
namespace {

/// DenseRetriever attends to every row of the working cache, including rows that a compressor
/// demoted.
class DenseRetriever final : public Retriever {
 public:
  DenseRetriever() : Retriever({.attends_all = true}) {}

  Status prepare(const SequenceContext&, const AssembledPrompt&) override { return {}; }
  bool needs_host(const RetrieveStep&) const override { return false; }
  Status attend(const RetrieveStep& step) override {
    const KvView kv = step.cache->view(step.layer);
    return step.cache->ragged(step.layer) ? attend_held(step, kv) : attend_rows(step, kv);
  }

 private:
  /// Attends where KV heads hold different numbers of rows.
  Status attend_held(const RetrieveStep& step, const KvView& kv) {
    rows_.resize(to_size(kv.num_kv_heads));
    lists_.clear();
    for (std::int32_t m = 0; m < kv.num_kv_heads; ++m) {
      auto& rows = rows_[at(m)];
      step.cache->head_rows(step.layer, m, rows);
      lists_.push_back({rows.data(), count_of(rows)});
    }
    return attend_rows(step, kv, lists_.data());
  }

  std::vector<std::vector<std::int32_t>> rows_;
  std::vector<RowList> lists_;
};

}  // namespace

void register_dense(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("dense", [] { return std::make_unique<DenseRetriever>(); });
}

}  // namespace quire
