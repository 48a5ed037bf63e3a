#include "server/config/remote_keys_file.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "server/config/namespace_tables.h"

namespace quire {
namespace {

constexpr const char* kField = "remote.keys_file";
/// A key has 64 digits; a file that is far longer is another one.
constexpr std::size_t kMaxKeyFileBytes = 4096;

Status wrong(const std::string& message) { return Status::invalid(kField, message); }

std::optional<std::string> read_file(const std::string& path, std::size_t most) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  for (std::istreambuf_iterator<char> at(in), end; at != end && text.size() < most; ++at)
    text += *at;
  if (!in.is_open() || in.bad()) return std::nullopt;
  return text;
}

/// Returns the key that a table refers to.
Result<std::string> key_of(const toml::table& table, const std::string& place,
                           const ReadVariable& variable) {
  std::string file, name;
  for (const auto& [key, node] : table) {
    std::string* const out = key.str() == "file"       ? &file
                             : key.str() == "variable" ? &name
                                                       : nullptr;
    if (out == nullptr)
      return wrong(place + ": unknown entry '" + std::string(key.str()) +
                   "'; use file or variable, which say where the key is");
    const auto text = node.value_exact<std::string>();
    if (!text || text->empty())
      return wrong(place + ": " + std::string(key.str()) + " must be a text that is not empty");
    *out = *text;
  }
  if (file.empty() == name.empty())
    return wrong(place + ": give either file or variable, which say where the key is");
  auto key = file.empty() ? variable(name) : read_file(file, kMaxKeyFileBytes);
  if (!key && file.empty())
    return wrong(place + ": there is no environment variable " + name + "; set it to the key");
  if (!key) return wrong(place + ": " + file + " cannot be read");
  return *std::move(key);
}

}  // namespace

Result<RemoteKeys> parse_remote_keys(std::string_view text, const std::string& file_name,
                                     const ReadVariable& variable) {
  RemoteKeys out;
  QUIRE_RETURN_IF_ERROR(read_namespace_tables(
      text, file_name, kField,
      [&](const std::string& name, const std::string& place, const toml::table& table) -> Status {
        QUIRE_ASSIGN_OR_RETURN(const std::string hex, key_of(table, place, variable));
        const Status s = out.add(name, hex);
        return s.ok() ? s : wrong(place + ": " + s.message());
      }));
  if (out.size() == 0)
    return wrong(file_name + " names no namespace; give a table for each, or [\"*\"] for all");
  return out;
}

Result<std::shared_ptr<const RemoteKeys>> load_remote_keys(const std::string& path) {
  if (path.empty()) return std::shared_ptr<const RemoteKeys>();
  QUIRE_ASSIGN_OR_RETURN(const std::string text, read_config_file(path, kField));
  const auto variable = [](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  QUIRE_ASSIGN_OR_RETURN(RemoteKeys keys, parse_remote_keys(text, path, variable));
  return std::make_shared<const RemoteKeys>(std::move(keys));
}

}  // namespace quire
