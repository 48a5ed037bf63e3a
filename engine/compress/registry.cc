#include "engine/compress/compressor.h"

namespace quire {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Compressor> (*make)();
};
constexpr Entry kCompressors[] = {
    {"none", make_none_compressor},
};

}  // namespace

std::vector<std::string> compressor_names() {
  std::vector<std::string> names;
  for (const Entry& e : kCompressors) names.emplace_back(e.name);
  return names;
}

Result<std::unique_ptr<Compressor>> make_compressor(std::string_view name) {
  std::string known;
  for (const Entry& e : kCompressors) {
    if (e.name == name) return e.make();
    known += known.empty() ? "" : ", ";
    known += e.name;
  }
  return Status::invalid("cache.compress", "'" + std::string(name) + "' is not known; this build has: auto, " + known);
}

}  // namespace quire
