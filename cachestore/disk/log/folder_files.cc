#include "cachestore/disk/log/folder_files.h"

#include <cstdlib>
#include <system_error>

namespace quire {

namespace fs = std::filesystem;

Result<std::vector<fs::path>> files_in(const std::string& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  fs::directory_iterator it(folder, ec);
  if (ec == std::errc::no_such_file_or_directory || ec == std::errc::not_a_directory) return out;
  // A range-based loop would throw.
  for (const fs::directory_iterator end; !ec && it != end; it.increment(ec))
    out.push_back(it->path());
  if (ec)
    return Status(Code::kIo, "cannot list the folder '" + folder + "': " + ec.message(),
                  "disk.path");
  return out;
}

std::uint64_t file_number(const fs::path& file) {
  return std::strtoull(file.stem().string().c_str(), nullptr, 10);
}

Result<std::map<std::uint64_t, fs::path>> logs_in(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(folder));
  std::map<std::uint64_t, fs::path> out;
  for (const fs::path& file : files)
    if (file.extension() == ".log") out.emplace(file_number(file), file);
  return out;
}

}  // namespace quire
