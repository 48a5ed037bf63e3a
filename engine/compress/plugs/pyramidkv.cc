#include "engine/compress/ranked.h"

#include "base/index.h"

namespace quire {
namespace {

struct PyramidOptions : WindowOptions {
  std::int64_t beta = 20;
};

OptionTable<PyramidOptions> option_table() {
  return OptionTable<PyramidOptions>()
      .add(window_options())
      .add(OptionFields<PyramidOptions>{
          number_option("beta", &PyramidOptions::beta, {1, 1e6},
                        "the last layer ranks capacity / beta rows, where all layers have rows to "
                        "spare")});
}

/// Implements PyramidKV (Cai et al., arXiv 2406.02069): SnapKV's scores with budgets that fall from
/// layer to layer.
class PyramidKvCompressor final : public RankedCompressor {
 public:
  explicit PyramidKvCompressor(const PyramidOptions& options)
      : RankedCompressor(options, Watch::kWindow), beta_(options.beta) {}

 private:
  std::int64_t layer_budget(std::int32_t layer, const Candidates& rows) const override {
    const auto ranked = count_of(rows.ranked);
    return pyramid_budgets(setup().num_layers, rows.budget, beta_, ranked)[at(layer)];
  }

  const std::int64_t beta_;
};

}  // namespace

void register_pyramidkv(PlugRegistry<Compressor>& compressors) {
  compressors.add("pyramidkv", option_table(), [](const PyramidOptions& options) {
    return std::make_unique<PyramidKvCompressor>(options);
  });
}

}  // namespace quire
