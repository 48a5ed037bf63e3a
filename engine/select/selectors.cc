#include "engine/select/selector.h"

namespace quire {

void register_plugs(PlugRegistry<Selector>& plugs);

const PlugRegistry<Selector>& selectors() {
  static const PlugRegistry<Selector> kRegistry = [] {
    PlugRegistry<Selector> plugs({.field = "selector"});
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

}  // namespace quire
