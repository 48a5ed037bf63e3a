#include "engine/compress/ranked.h"

namespace quire {
namespace {

OptionTable<RankedOptions> option_table() {
  return OptionTable<RankedOptions>().add(ranked_options());
}

/// Implements H2O after prefill (Zhang et al., arXiv 2306.14048): it keeps the rows with the
/// largest sums of attention. Rows placed from the store have no queries, so the sums cover what is
/// computed in prompt order: the whole prompt under `recompute`, prefix and question under `reuse`.
class H2oCompressor final : public RankedCompressor {
 public:
  explicit H2oCompressor(const RankedOptions& options)
      : RankedCompressor(options, Watch::kPrompt) {}
};

}  // namespace

void register_h2o(PlugRegistry<Compressor>& compressors) {
  compressors.add("h2o", option_table(), [](const RankedOptions& options) {
    return std::make_unique<H2oCompressor>(options);
  });
}

}  // namespace quire
