#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = window_options("max");
    for (PlugOption& o : lookahead_options()) t.push_back(std::move(o));
    for (PlugOption& o : sparse_prefill_options()) t.push_back(std::move(o));
    return t;
  }();
  return kTable;
}

/// Implements SpecKV: the question's last rows and those of a draft's answer after it score all
/// others by their pooled attention in the target. Without a look-ahead it equals SnapKV with these
/// settings.
class SpecKvCompressor final : public RankedCompressor {
 public:
  SpecKvCompressor() : RankedCompressor(table(), Watch::kWindow) {}
  std::string_view name() const override { return "speckv"; }
};

}  // namespace

std::unique_ptr<Compressor> make_speckv_compressor() {
  return std::make_unique<SpecKvCompressor>();
}

}  // namespace quire
