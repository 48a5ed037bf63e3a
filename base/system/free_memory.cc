#include "base/system/free_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/system/control_groups.h"

namespace quire {
namespace {

/// A group that is nearly full has file cache in use that it can give back, too.
constexpr std::int64_t kLeastOfGroups = 64 << 20;

}  // namespace

std::int64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (info >> key >> kib && std::getline(info, unit)) {
    if (key != "MemAvailable:") continue;
    const std::int64_t left = memory_left_in_groups(own_control_groups(), "/sys/fs/cgroup");
    return std::min(kib * 1024, std::max(kLeastOfGroups, left));
  }
  return 0;
}

}  // namespace quire
