#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = window_options("max");
    for (PlugOption& o : lookahead_options()) t.push_back(std::move(o));
    for (PlugOption& o : sparse_prefill_options()) t.push_back(std::move(o));
    for (PlugOption& o : adaptive_options()) t.push_back(std::move(o));
    return t;
  }();
  return kTable;
}

/// Implements Ada-SpecKV: SpecKV's scores, with the layer's budget distributed to the heads with
/// the best scores.
class AdaSpecKvCompressor final : public RankedCompressor {
 public:
  AdaSpecKvCompressor() : RankedCompressor(table(), Watch::kWindow) {}
  std::string_view name() const override { return "ada_speckv"; }

 private:
  std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                         std::int64_t budget) const override {
    return adaptive_budgets(scores, budget, number("floor"), word("normalize") == "on");
  }
};

}  // namespace

std::unique_ptr<Compressor> make_ada_speckv_compressor() {
  return std::make_unique<AdaSpecKvCompressor>();
}

}  // namespace quire
