/// Parts of an Office Open XML file and how they refer to each other (ECMA-376, part 2).
#pragma once

#include <map>
#include <pugixml.hpp>
#include <string>
#include <string_view>

namespace quire {

struct OfficeRelation {
  std::string target;  ///< name of the entry
  std::string type;    ///< last word of the type: "slide", "notesSlide"
};

/// Returns what a part refers to, by the id of the reference. References to other files are left
/// out; a part without any has none.
std::map<std::string, OfficeRelation> office_relations(
    const std::map<std::string, std::string>& entries, const std::string& part);

/// Returns the id by which a node refers to a part (r:id); empty: it has none.
std::string relation_id(const pugi::xml_node& node);

/// Returns the name of the entry that `href` means, seen from the entry `base`.
std::string entry_at(const std::string& base, std::string_view href);

}  // namespace quire
