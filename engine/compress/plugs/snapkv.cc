#include "engine/compress/ranked.h"

namespace quire {
namespace {

OptionTable<WindowOptions> option_table() {
  return OptionTable<WindowOptions>().add(window_options());
}

/// Implements SnapKV (Li et al., arXiv 2404.14469): the prompt's last rows score all others by
/// their pooled attention.
class SnapKvCompressor final : public RankedCompressor {
 public:
  explicit SnapKvCompressor(const WindowOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}
};

}  // namespace

void register_snapkv(PlugRegistry<Compressor>& compressors) {
  compressors.add("snapkv", option_table(), [](const WindowOptions& options) {
    return std::make_unique<SnapKvCompressor>(options);
  });
}

}  // namespace quire
