#include "engine/plug/plug_registry.h"
#include "engine/retrieve/retriever.h"

namespace quire {
namespace {

constexpr PlugEntry<Retriever> kRetrievers[] = {
    {"arkvale", make_arkvale_retriever},   {"ctkvr", make_ctkvr_retriever},
    {"dense", make_dense_retriever},       {"flat", make_flat_retriever},
    {"freekv", make_freekv_retriever},     {"magicpig", make_magicpig_retriever},
    {"quest", make_quest_retriever},       {"raas", make_raas_retriever},
    {"shadowkv", make_shadowkv_retriever}, {"specontext", make_specontext_retriever},
};

}  // namespace

std::vector<std::string> retriever_names() { return plug_names<Retriever>(kRetrievers); }

Result<std::unique_ptr<Retriever>> make_retriever(std::string_view name) {
  return make_plug<Retriever>(kRetrievers, name, "cache.decode", "auto, ");
}

}  // namespace quire
