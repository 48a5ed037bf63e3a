#include <cmath>

#include "engine/retrieve/retriever.h"
#include "kernels/attention.h"

namespace quire {
namespace {

/// Attends to every row of the working cache.
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
    return attention(args);
  }
};

}  // namespace

std::unique_ptr<Retriever> make_dense_retriever() { return std::make_unique<DenseRetriever>(); }

}  // namespace quire
