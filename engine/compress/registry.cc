#include "engine/compress/compressor.h"
#include "engine/plug/plug_registry.h"

namespace quire {
namespace {

constexpr PlugEntry<Compressor> kCompressors[] = {
    {"none", make_none_compressor},
    {"streamingllm", make_streamingllm_compressor},
    {"h2o", make_h2o_compressor},
    {"snapkv", make_snapkv_compressor},
    {"pyramidkv", make_pyramidkv_compressor},
    {"adakv", make_adakv_compressor},
    {"speckv", make_speckv_compressor},
    {"ada_speckv", make_ada_speckv_compressor},
};

}  // namespace

std::vector<std::string> compressor_names() { return plug_names<Compressor>(kCompressors); }

Result<std::unique_ptr<Compressor>> make_compressor(std::string_view name) {
  return make_plug<Compressor>(kCompressors, name, "cache.compress", "auto, ");
}

}  // namespace quire
