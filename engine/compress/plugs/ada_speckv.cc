#include "engine/compress/ranked.h"

namespace quire {

/// Registers Ada-SpecKV: SpecKV's scores, with the layer's budget distributed as AdaKV does.
void register_ada_speckv(PlugRegistry<Compressor>& compressors) {
  compressors.add("ada_speckv",
                  OptionTable<LookaheadOptions>()
                      .add(window_options())
                      .add(lookahead_options())
                      .add(sparse_prefill_options())
                      .add(adaptive_options()),
                  [](const LookaheadOptions& options) {
                    return std::make_unique<AdaptiveCompressor>(options);
                  });
}

}  // namespace quire
