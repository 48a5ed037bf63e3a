// Configuration and key files: any text is read or refused. An accepted file prints as text that
// reads back to the same.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "server/access/auth.h"
#include "server/config/config.h"
#include "server/config/namespace_wordings.h"
#include "server/config/remote_keys_file.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Config config;
  if (apply_toml(text, "fuzz.toml", config).ok()) {
    const std::string printed = config_to_toml(config, true);
    Config again;
    if (!apply_toml(printed, "printed.toml", again).ok() || config_to_toml(again, true) != printed)
      std::abort();
    (void)check_config(config);
  }
  Config flags;
  (void)apply_flags({std::string(text)}, flags);
  (void)KeyRing::parse(text, "fuzz-keys.toml");
  const auto wordings = parse_namespace_wordings(text, "fuzz-namespaces.toml");
  if (!wordings.ok() && wordings.status().field() != "prompt.namespaces_file") std::abort();
  const auto keys = parse_remote_keys(text, "fuzz-kv-keys.toml", [](const std::string&) {
    return std::optional<std::string>(std::string(64, '7'));
  });
  if (!keys.ok() && keys.status().field() != "remote.keys_file") std::abort();
  return 0;
}
