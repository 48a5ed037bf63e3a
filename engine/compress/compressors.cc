#include "engine/compress/compressor.h"

namespace quire {

void register_plugs(PlugRegistry<Compressor>& plugs);

const PlugRegistry<Compressor>& compressors() {
  static const PlugRegistry<Compressor> kRegistry = [] {
    PlugRegistry<Compressor> plugs({.field = "cache.compress"});
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

}  // namespace quire
