#include "engine/retrieve/retriever.h"

namespace quire {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Retriever> (*make)();
};
constexpr Entry kRetrievers[] = {
    {"dense", make_dense_retriever},
};

}  // namespace

std::vector<std::string> retriever_names() {
  std::vector<std::string> names;
  for (const Entry& e : kRetrievers) names.emplace_back(e.name);
  return names;
}

Result<std::unique_ptr<Retriever>> make_retriever(std::string_view name) {
  std::string known;
  for (const Entry& e : kRetrievers) {
    if (e.name == name) return e.make();
    known += known.empty() ? "" : ", ";
    known += e.name;
  }
  return Status::invalid("cache.decode", "'" + std::string(name) + "' is not known; this build has: auto, " + known);
}

}  // namespace quire
