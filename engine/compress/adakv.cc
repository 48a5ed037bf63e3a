#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = window_options("mean");
    for (PlugOption& o : adaptive_options()) t.push_back(std::move(o));
    return t;
  }();
  return kTable;
}

/// Implements AdaKV over SnapKV's scores (Feng et al., arXiv 2407.11550): the layer's budget goes
/// to the heads with the best scores.
class AdaKvCompressor final : public RankedCompressor {
 public:
  AdaKvCompressor() : RankedCompressor(table(), Watch::kWindow) {}
  std::string_view name() const override { return "adakv"; }

 private:
  std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                         std::int64_t budget) const override {
    return adaptive_budgets(scores, budget, number("floor"), word("normalize") == "on");
  }
};

}  // namespace

std::unique_ptr<Compressor> make_adakv_compressor() { return std::make_unique<AdaKvCompressor>(); }

}  // namespace quire
