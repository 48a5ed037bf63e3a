#include "engine/retrieve/retriever.h"

namespace quire {

void register_plugs(PlugRegistry<Retriever>& plugs);

const PlugRegistry<Retriever>& retrievers() {
  static const PlugRegistry<Retriever> kRegistry = [] {
    PlugRegistry<Retriever> plugs({.field = "cache.decode", .also = "auto, "});
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

}  // namespace quire
