/// Finds the files without a name that an index keeps in a folder, to damage them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quire::testing {

/// Returns paths under /proc that open and truncate them while this process has them open.
inline std::vector<std::string> scratch_files(const std::filesystem::path& folder) {
  std::vector<std::string> out;
  const std::string begin = std::filesystem::canonical(folder).string() + "/";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ec;
    const std::string target = std::filesystem::read_symlink(entry.path(), ec).string();
    if (ec || !target.starts_with(begin) || !target.ends_with(" (deleted)")) continue;
    const std::string name = target.substr(begin.size());
    if (name.starts_with("#") || name.starts_with("index-")) out.push_back(entry.path().string());
  }
  return out;
}

}  // namespace quire::testing
