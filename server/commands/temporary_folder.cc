#include "server/commands/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace quire {

Result<std::string> make_temporary_folder(std::string_view name) {
  std::string folder = "/tmp", from;
  for (const char* variable : {"TMPDIR", "TMP", "TEMP", "TEMPDIR"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr || *value == '\0') continue;
    folder = value;
    from = std::string(" (") + variable + ")";
    break;
  }
  std::string path = (std::filesystem::path(folder) / (std::string(name) + "-XXXXXX")).string();
  if (::mkdtemp(path.data()) == nullptr)
    return Status::io("cannot make a temporary folder in '" + folder + "'" + from + ": " +
                      std::strerror(errno));
  return path;
}

}  // namespace quire
