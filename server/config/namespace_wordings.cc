#include "server/config/namespace_wordings.h"

#include <utility>

#include "server/config/namespace_tables.h"

namespace quire {
namespace {

constexpr const char* kField = "prompt.namespaces_file";

Status wrong(const std::string& message) { return Status::invalid(kField, message); }

Result<NamespaceWords> read_table(const toml::table& table, const std::string& place) {
  NamespaceWords out;
  for (const auto& [key, node] : table) {
    std::string* words = key.str() == "intro"      ? &out.wording.intro
                         : key.str() == "document" ? &out.wording.document
                         : key.str() == "question" ? &out.wording.question
                         : key.str() == "citation" ? &out.citation.emplace()
                                                   : nullptr;
    const std::string name(key.str());
    if (words == nullptr)
      return wrong(place + ": unknown entry '" + name +
                   "'; use intro, document, question or citation");
    const auto text = node.value_exact<std::string>();
    if (!text) return wrong(place + ": " + name + " must be a text");
    *words = *text;
  }
  return out;
}

}  // namespace

Result<NamespaceWordings> parse_namespace_wordings(std::string_view text,
                                                   const std::string& file_name) {
  NamespaceWordings out;
  QUIRE_RETURN_IF_ERROR(read_namespace_tables(
      text, file_name, kField,
      [&](const std::string& name, const std::string& place, const toml::table& table) -> Status {
        if (name == "*")
          return wrong(place +
                       " stands for none here; what the other namespaces have are the settings "
                       "prompt.intro, prompt.document, prompt.question and prompt.citation");
        QUIRE_ASSIGN_OR_RETURN(NamespaceWords words, read_table(table, place));
        out.emplace(name, std::move(words));
        return {};
      }));
  return out;
}

Result<NamespaceWordings> load_namespace_wordings(const std::string& path) {
  if (path.empty()) return NamespaceWordings();
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_config_file(path, kField));
  return parse_namespace_wordings(text, path);
}

}  // namespace quire
