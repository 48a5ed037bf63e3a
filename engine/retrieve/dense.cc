#include <cmath>
#include <vector>

#include "engine/retrieve/retriever.h"
#include "kernels/attention.h"
#include "kernels/attention_rows.h"

namespace quire {
namespace {

/// Attends to every row of the working cache, also to what a compressor demoted.
class DenseRetriever final : public Retriever {
 public:
  std::string_view name() const override { return "dense"; }

  Status attend(const RetrieveStep& step) override {
    AttentionArgs args{};
    args.q = step.query;
    args.query_positions = &step.position;
    args.rows = 1;
    args.ldq = args.ldo = std::int64_t{step.num_heads} * step.head_dim;
    args.num_heads = step.num_heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
    args.kv = step.cache->view(step.layer);
    args.out = step.out;
    return step.cache->ragged(step.layer) ? attend_held(step, args) : attention(args);
  }

 private:
  /// Where KV heads hold different numbers of rows.
  Status attend_held(const RetrieveStep& step, const AttentionArgs& args) {
    rows_.resize(static_cast<std::size_t>(args.kv.num_kv_heads));
    lists_.clear();
    for (std::int32_t m = 0; m < args.kv.num_kv_heads; ++m) {
      auto& rows = rows_[static_cast<std::size_t>(m)];
      step.cache->head_rows(step.layer, m, rows);
      lists_.push_back({rows.data(), static_cast<std::int64_t>(rows.size())});
    }
    return attention_rows({args, lists_.data()});
  }

  std::vector<std::vector<std::int32_t>> rows_;
  std::vector<RowList> lists_;
};

}  // namespace

std::unique_ptr<Retriever> make_dense_retriever() { return std::make_unique<DenseRetriever>(); }

}  // namespace quire
