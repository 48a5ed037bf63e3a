#include "engine/recompute/recomputer.h"

namespace quire {

void register_plugs(PlugRegistry<Recomputer>& plugs);

const PlugRegistry<Recomputer>& recomputers() {
  static const PlugRegistry<Recomputer> kRegistry = [] {
    PlugRegistry<Recomputer> plugs({.field = "recomputer"});
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

}  // namespace quire
