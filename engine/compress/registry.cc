#include "engine/compress/compressor.h"
#include "engine/pipeline/plug_registry.h"

namespace quire {
namespace {

constexpr PlugEntry<Compressor> kCompressors[] = {
    {"none", make_none_compressor},
};

}  // namespace

std::vector<std::string> compressor_names() { return plug_names<Compressor>(kCompressors); }

Result<std::unique_ptr<Compressor>> make_compressor(std::string_view name) { return make_plug<Compressor>(kCompressors, name, "cache.compress", "auto, "); }

}  // namespace quire
