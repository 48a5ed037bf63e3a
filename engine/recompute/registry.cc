#include "engine/recompute/recomputer.h"

namespace quire {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Recomputer> (*make)();
};
constexpr Entry kRecomputers[] = {
    {"none", make_none_recomputer},
    {"full", make_full_recomputer},
    {"epic", make_epic_recomputer},
    {"inexact", make_inexact_recomputer},
    {"cacheblend", make_cacheblend_recomputer},
    {"samkv_overwrite", make_samkv_overwrite_recomputer},
    {"samkv_fusion", make_samkv_fusion_recomputer},
};

}  // namespace

std::vector<std::string> recomputer_names() {
  std::vector<std::string> names;
  for (const Entry& e : kRecomputers) names.emplace_back(e.name);
  return names;
}

Result<std::unique_ptr<Recomputer>> make_recomputer(std::string_view name) {
  std::string known;
  for (const Entry& e : kRecomputers) {
    if (e.name == name) return e.make();
    known += known.empty() ? "" : ", ";
    known += e.name;
  }
  return Status::invalid("recomputer", "no recomputer '" + std::string(name) + "'; this build has: " + known);
}

}  // namespace quire
