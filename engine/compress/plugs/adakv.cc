#include "engine/compress/ranked.h"

namespace quire {
namespace {

OptionTable<WindowOptions> option_table() {
  return OptionTable<WindowOptions>().add(window_options()).add(adaptive_options());
}

/// Implements AdaKV over SnapKV's scores (Feng et al., arXiv 2407.11550): the layer's budget goes
/// to the heads with the best scores.
class AdaKvCompressor final : public RankedCompressor {
 public:
  explicit AdaKvCompressor(const WindowOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}

 private:
  std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                         std::int64_t budget) const override {
    return adaptive_budgets(scores, budget, options().floor, options().normalize);
  }
};

}  // namespace

void register_adakv(PlugRegistry<Compressor>& compressors) {
  compressors.add("adakv", option_table(), [](const WindowOptions& options) {
    return std::make_unique<AdaKvCompressor>(options);
  });
}

}  // namespace quire
