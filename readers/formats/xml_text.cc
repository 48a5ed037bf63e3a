#include "readers/formats/xml_text.h"

#include <charconv>

namespace quire {
namespace {

constexpr int kMaxDepth = 500;

/// Readers recurse, so the depth is bounded once, here.
bool too_deep(const pugi::xml_node& root) {
  int depth = 0;
  pugi::xml_node node = root;
  while (node) {
    if (node.first_child()) {
      if (++depth > kMaxDepth) return true;
      node = node.first_child();
      continue;
    }
    while (node && node != root && !node.next_sibling()) {
      node = node.parent();
      --depth;
    }
    if (!node || node == root) return false;
    node = node.next_sibling();
  }
  return false;
}

}  // namespace

Status parse_entry(const std::map<std::string, std::string>& entries, const std::string& entry,
                   pugi::xml_document& out) {
  const auto found = entries.find(entry);
  if (found == entries.end()) return Status::invalid("", "is damaged: " + entry + " is missing");
  // White space between runs of text is text in these formats. Entities are not expanded, and
  // nothing outside the text is loaded.
  const auto result = out.load_buffer(found->second.data(), found->second.size(),
                                      pugi::parse_default | pugi::parse_ws_pcdata);
  if (result.status == pugi::status_out_of_memory) return Status::exhausted("is too large");
  if (!result)
    return Status::invalid(
        "", "is damaged: " + entry + " is not XML at byte " + std::to_string(result.offset));
  if (too_deep(out)) return Status::invalid("", "is damaged: " + entry + " nests without end");
  return {};
}

std::string_view local_name(const pugi::xml_node& node) {
  const std::string_view name = node.name();
  const auto colon = name.find(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

std::string_view local_attribute(const pugi::xml_node& node, std::string_view wanted) {
  for (const auto& attribute : node.attributes()) {
    const std::string_view name = attribute.name();
    const auto colon = name.find(':');
    if ((colon == std::string_view::npos ? name : name.substr(colon + 1)) == wanted)
      return attribute.value();
  }
  return {};
}

int local_number(const pugi::xml_node& node, std::string_view name, int otherwise) {
  const std::string_view text = local_attribute(node, name);
  int out = otherwise;
  (void)std::from_chars(text.data(), text.data() + text.size(), out);
  return out;
}

pugi::xml_node local_child(const pugi::xml_node& node, std::string_view name) {
  for (const auto& child : node.children())
    if (local_name(child) == name) return child;
  return {};
}

std::string text_of_first(const pugi::xml_node& node, std::string_view name) {
  const auto found = node.find_node(
      [&](const pugi::xml_node& at) { return local_name(at) == name; });
  return found ? std::string(found.text().get()) : std::string();
}

}  // namespace quire
