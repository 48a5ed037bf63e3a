#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = ranked_options();
  return kTable;
}

/// Implements H2O after prefill (Zhang et al., arXiv 2306.14048): it keeps the rows with the
/// largest sums of attention. Rows placed from the store have no queries, so the sums cover what is
/// computed in prompt order: the whole prompt under `recompute`, prefix and question under `reuse`.
class H2oCompressor final : public RankedCompressor {
 public:
  H2oCompressor() : RankedCompressor(table(), Watch::kPrompt) {}
  std::string_view name() const override { return "h2o"; }
};

}  // namespace

std::unique_ptr<Compressor> make_h2o_compressor() { return std::make_unique<H2oCompressor>(); }

}  // namespace quire
