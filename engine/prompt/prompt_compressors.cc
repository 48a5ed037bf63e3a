#include "engine/prompt/prompt_compressor.h"

namespace quire {

void register_plugs(PlugRegistry<PromptCompressor>& plugs);

const PlugRegistry<PromptCompressor>& prompt_compressors() {
  static const PlugRegistry<PromptCompressor> kRegistry = [] {
    PlugRegistry<PromptCompressor> plugs(
        {.field = "cache.prompt_compression", .options_field = "cache.prompt_compression"});
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

}  // namespace quire
