#include "engine/select/selector.h"

namespace quire {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Selector> (*make)();
};
constexpr Entry kSelectors[] = {
    {"all", make_all_selector},
    {"anchors", make_anchors_selector},
    {"samkv", make_samkv_selector},
    {"infllm", make_infllm_selector},
};

}  // namespace

std::vector<std::string> selector_names() {
  std::vector<std::string> names;
  for (const Entry& e : kSelectors) names.emplace_back(e.name);
  return names;
}

Result<std::unique_ptr<Selector>> make_selector(std::string_view name) {
  std::string known;
  for (const Entry& e : kSelectors) {
    if (e.name == name) return e.make();
    known += known.empty() ? "" : ", ";
    known += e.name;
  }
  return Status::invalid("selector", "no selector '" + std::string(name) + "'; this build has: " + known);
}

}  // namespace quire
