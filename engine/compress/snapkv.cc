#include "engine/compress/ranked.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = window_options("mean");
  return kTable;
}

/// Implements SnapKV (Li et al., arXiv 2404.14469): the prompt's last rows score all others by
/// their pooled attention.
class SnapKvCompressor final : public RankedCompressor {
 public:
  SnapKvCompressor() : RankedCompressor(table(), Watch::kWindow) {}
  std::string_view name() const override { return "snapkv"; }
};

}  // namespace

std::unique_ptr<Compressor> make_snapkv_compressor() {
  return std::make_unique<SnapKvCompressor>();
}

}  // namespace quire
