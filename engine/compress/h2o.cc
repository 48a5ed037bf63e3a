#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = ranked_options();
  return kTable;
}

/// H2O (Zhang et al., arXiv 2306.14048), applied after prefill: the rows with the largest sums of
/// attention. Rows that were placed from the store have no queries here, so the sums run over what
/// is computed in prompt order: the whole prompt under `recompute`, prefix and question under
/// `reuse`.
class H2oCompressor final : public RankedCompressor {
 public:
  H2oCompressor() : RankedCompressor(table(), Watch::kPrompt) {}
  std::string_view name() const override { return "h2o"; }
};

}  // namespace

std::unique_ptr<Compressor> make_h2o_compressor() { return std::make_unique<H2oCompressor>(); }

}  // namespace quire
