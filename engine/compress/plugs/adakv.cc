#include "engine/compress/ranked.h"

namespace quire {

/// Registers AdaKV over SnapKV's scores (Feng et al., arXiv 2407.11550).
void register_adakv(PlugRegistry<Compressor>& compressors) {
  compressors.add(
      "adakv", OptionTable<WindowOptions>().add(window_options()).add(adaptive_options()),
      [](const WindowOptions& options) { return std::make_unique<AdaptiveCompressor>(options); });
}

}  // namespace quire
