#include "engine/compress/ranked.h"

namespace quire {
namespace {

struct AdaSpecKvOptions : WindowOptions {
  AdaSpecKvOptions() {
    reduction = ScoreReduction::kMax;
    lookahead = 12;
    window_share = 0.25;
  }
};

OptionTable<AdaSpecKvOptions> option_table() {
  return OptionTable<AdaSpecKvOptions>()
      .add(window_options())
      .add(lookahead_options())
      .add(sparse_prefill_options())
      .add(adaptive_options());
}

/// Implements Ada-SpecKV: SpecKV's scores, with the layer's budget distributed to the heads with
/// the best scores.
class AdaSpecKvCompressor final : public RankedCompressor {
 public:
  explicit AdaSpecKvCompressor(const AdaSpecKvOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}

 private:
  std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                         std::int64_t budget) const override {
    return adaptive_budgets(scores, budget, options().floor, options().normalize);
  }
};

}  // namespace

void register_ada_speckv(PlugRegistry<Compressor>& compressors) {
  compressors.add("ada_speckv", option_table(), [](const AdaSpecKvOptions& options) {
    return std::make_unique<AdaSpecKvCompressor>(options);
  });
}

}  // namespace quire
