#include "engine/plug/plug_registry.h"
#include "engine/select/selector.h"

namespace quire {
namespace {

constexpr PlugEntry<Selector> kSelectors[] = {
    {"all", make_all_selector},     {"anchors", make_anchors_selector},
    {"samkv", make_samkv_selector}, {"infllm", make_infllm_selector},
    {"words", make_words_selector},
};

}  // namespace

std::vector<std::string> selector_names() { return plug_names<Selector>(kSelectors); }

Result<std::unique_ptr<Selector>> make_selector(std::string_view name) {
  return make_plug<Selector>(kSelectors, name, "selector");
}

}  // namespace quire
