#include "base/system/control_groups.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <sstream>

namespace quire {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

/// Returns the number in a file; none: there is no file, or it says "max".
std::optional<std::int64_t> number_in(const std::string& file) {
  std::ifstream in(file);
  std::int64_t number = 0;
  return in >> number ? std::optional(number) : std::nullopt;
}

/// Returns the number of a line "KEY NUMBER"; 0: there is none.
std::int64_t line_of(const std::string& file, const std::string& key) {
  std::ifstream in(file);
  std::string name;
  for (std::int64_t number = 0; in >> name >> number;)
    if (name == key) return number;
  return 0;
}

/// Returns the least that `look` finds in the folder of a group of `controller` or above it.
std::int64_t least_of_groups(
    std::string_view groups, const std::string& root, const std::string& controller,
    const std::function<std::int64_t(const std::string& folder, bool version2)>& look) {
  std::int64_t least = kNoLimit;
  std::istringstream lines{std::string(groups)};
  for (std::string line; std::getline(lines, line);) {
    // HIERARCHY:CONTROLLERS:PATH; version 2 names no controllers.
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool version2 = controllers == ",,";
    if (!version2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    const std::string base = version2 ? root : root + "/" + controller;
    // A container may see its own group as the root, whatever path the line names.
    for (std::string path = line.substr(second + 1);; path.erase(path.rfind('/'))) {
      if (path == "/") path.clear();
      least = std::min(least, look(base + path, version2));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

std::int64_t memory_left_in(const std::string& folder, bool version2) {
  const auto limit = number_in(folder + (version2 ? "/memory.max" : "/memory.limit_in_bytes"));
  const auto used = number_in(folder + (version2 ? "/memory.current" : "/memory.usage_in_bytes"));
  if (!limit || !used) return kNoLimit;
  const std::int64_t cache = line_of(folder + "/memory.stat",
                                     version2 ? "inactive_file" : "total_inactive_file");
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - cache));
}

std::int64_t cores_in(const std::string& folder, bool version2) {
  std::optional<std::int64_t> quota, period;  // microseconds
  if (version2) {
    std::ifstream in(folder + "/cpu.max");  // "max 100000" or "200000 100000"
    std::int64_t first = 0, second = 0;
    if (in >> first >> second) {
      quota = first;
      period = second;
    }
  } else {
    quota = number_in(folder + "/cpu.cfs_quota_us");  // -1: none
    period = number_in(folder + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return kNoLimit;
  return *quota / *period + (*quota % *period > 0 ? 1 : 0);
}

}  // namespace

std::string own_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::int64_t memory_left_in_groups(std::string_view groups, const std::string& root) {
  return least_of_groups(groups, root, "memory", memory_left_in);
}

std::int64_t cores_in_groups(std::string_view groups, const std::string& root) {
  return least_of_groups(groups, root, "cpu", cores_in);
}

}  // namespace quire
