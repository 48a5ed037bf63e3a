#include "engine/plug/plug_registry.h"
#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

constexpr PlugEntry<Recomputer> kRecomputers[] = {
    {"none", make_none_recomputer},
    {"full", make_full_recomputer},
    {"epic", make_epic_recomputer},
    {"inexact", make_inexact_recomputer},
    {"cacheblend", make_cacheblend_recomputer},
    {"samkv_overwrite", make_samkv_overwrite_recomputer},
    {"samkv_fusion", make_samkv_fusion_recomputer},
    {"samkv_kept", make_samkv_kept_recomputer},
};

}  // namespace

std::vector<std::string> recomputer_names() { return plug_names<Recomputer>(kRecomputers); }

Result<std::unique_ptr<Recomputer>> make_recomputer(std::string_view name) {
  return make_plug<Recomputer>(kRecomputers, name, "recomputer");
}

}  // namespace quire
