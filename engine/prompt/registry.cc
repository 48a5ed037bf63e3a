#include "engine/plug/plug_registry.h"
#include "engine/prompt/prompt_compressor.h"

namespace quire {
namespace {

constexpr PlugEntry<PromptCompressor> kPromptCompressors[] = {
    {"none", make_none_prompt_compressor},
    {"specpc", make_specpc_compressor},
    {"surprisal", make_surprisal_compressor},
};

}  // namespace

std::vector<std::string> prompt_compressor_names() {
  return plug_names<PromptCompressor>(kPromptCompressors);
}

Result<std::unique_ptr<PromptCompressor>> make_prompt_compressor(std::string_view name) {
  return make_plug<PromptCompressor>(kPromptCompressors, name, "cache.prompt_compression");
}

}  // namespace quire
