#include "server/config/namespace_tables.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "server/config/namespace_name.h"

namespace quire {

Status read_namespace_tables(std::string_view text, const std::string& file_name,
                             std::string_view field, const ReadNamespace& read) {
  const auto wrong = [&](const std::string& message) {
    return Status::invalid(std::string(field), message);
  };
  try {
    for (const auto& [key, node] : toml::parse(text, file_name)) {
      const std::string name(key.str()), place = file_name + ", namespace '" + name + "'";
      if (name.empty() || node.as_table() == nullptr)
        return wrong(place + " must be a table, such as [" + (name.empty() ? "team" : name) + "]");
      if (name != "*" && !valid_namespace(name))
        return wrong(place +
                     ": no namespace can have this name; it has 1 to 64 letters, digits, "
                     "'.', '_' or '-', and begins with a letter or digit");
      QUIRE_RETURN_IF_ERROR(read(name, place, *node.as_table()));
    }
    return {};
  } catch (const toml::parse_error& e) {
    return wrong(file_name + ", line " + std::to_string(e.source().begin.line) + ": " +
                 std::string(e.description()));
  } catch (const std::runtime_error& e) {
    return wrong(file_name + ": " + e.what());
  }
}

Result<std::string> read_config_file(const std::string& path, std::string_view field) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in.is_open() || in.bad())
    return Status::invalid(std::string(field), path + " cannot be read");
  return text;
}

}  // namespace quire
