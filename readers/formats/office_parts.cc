#include "readers/formats/office_parts.h"

#include "readers/formats/xml_text.h"

namespace quire {

std::map<std::string, OfficeRelation> office_relations(
    const std::map<std::string, std::string>& entries, const std::string& part) {
  std::map<std::string, OfficeRelation> out;
  const auto slash = part.rfind('/') + 1;
  pugi::xml_document document;
  if (!parse_entry(entries, part.substr(0, slash) + "_rels/" + part.substr(slash) + ".rels",
                   document)
           .ok())
    return out;
  for (const auto& node : document.document_element().children()) {
    if (local_attribute(node, "TargetMode") == "External") continue;
    const std::string_view type = local_attribute(node, "Type");
    out[std::string(local_attribute(node, "Id"))] = {
        entry_at(part, local_attribute(node, "Target")),
        std::string(type.substr(type.rfind('/') + 1))};
  }
  return out;
}

std::string relation_id(const pugi::xml_node& node) {
  for (const auto& attribute : node.attributes())
    if (std::string_view(attribute.name()).ends_with(":id")) return attribute.value();
  return {};
}

std::string entry_at(const std::string& base, std::string_view href) {
  std::string path = href.starts_with('/') ? std::string() : base.substr(0, base.rfind('/') + 1);
  path += href.substr(href.starts_with('/') ? 1 : 0);
  while (path.starts_with("./")) path.erase(0, 2);
  for (auto here = path.find("/./"); here != std::string::npos; here = path.find("/./"))
    path.erase(here, 2);
  for (auto up = path.find("/../"); up != std::string::npos && up > 0; up = path.find("/../")) {
    const auto before = path.rfind('/', up - 1);
    const auto begin = before == std::string::npos ? 0 : before + 1;
    path.erase(begin, up + 4 - begin);
  }
  return path;
}

}  // namespace quire
