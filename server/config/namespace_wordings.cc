#include "server/config/namespace_wordings.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "server/config/toml.h"

namespace quire {
namespace {

Status wrong(const std::string& message) {
  return Status::invalid("prompt.namespaces_file", message);
}

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
  try {
    NamespaceWordings out;
    for (const auto& [key, node] : toml::parse(text, file_name)) {
      const std::string name(key.str()), place = file_name + ", namespace '" + name + "'";
      if (name.empty() || node.as_table() == nullptr)
        return wrong(place + " must be a table, such as [" + (name.empty() ? "team" : name) + "]");
      QUIRE_ASSIGN_OR_RETURN(NamespaceWords words, read_table(*node.as_table(), place));
      out.emplace(name, std::move(words));
    }
    return out;
  } catch (const toml::parse_error& e) {
    return wrong(file_name + ", line " + std::to_string(e.source().begin.line) + ": " +
                 std::string(e.description()));
  } catch (const std::runtime_error& e) {
    return wrong(file_name + ": " + e.what());
  }
}

Result<NamespaceWordings> load_namespace_wordings(const std::string& path) {
  if (path.empty()) return NamespaceWordings();
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.is_open() || in.bad()) return wrong(path + " cannot be read");
  return parse_namespace_wordings(text, path);
}

}  // namespace quire
