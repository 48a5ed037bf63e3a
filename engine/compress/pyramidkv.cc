#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = window_options("mean");
    t.push_back(
        {.name = "beta",
         .default_value = "20",
         .least = 1,
         .most = 1e6,
         .summary =
             "the last layer ranks capacity / beta rows, where all layers have rows to spare"});
    return t;
  }();
  return kTable;
}

/// Implements PyramidKV (Cai et al., arXiv 2406.02069): SnapKV's scores with budgets that fall from
/// layer to layer.
class PyramidKvCompressor final : public RankedCompressor {
 public:
  PyramidKvCompressor() : RankedCompressor(table(), Watch::kWindow) {}
  std::string_view name() const override { return "pyramidkv"; }

 private:
  std::int64_t layer_budget(std::int32_t layer, const Candidates& rows) const override {
    const auto ranked = static_cast<std::int64_t>(rows.ranked.size());
    return pyramid_budgets(setup().num_layers, rows.budget,
                           static_cast<std::int64_t>(number("beta")),
                           ranked)[static_cast<std::size_t>(layer)];
  }
};

}  // namespace

std::unique_ptr<Compressor> make_pyramidkv_compressor() {
  return std::make_unique<PyramidKvCompressor>();
}

}  // namespace quire
