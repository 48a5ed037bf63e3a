/// Memory that is free for new allocations.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace quire {

/// Returns the bytes free for new allocations, page cache included; 0 if the system does not say.
inline std::int64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  std::string key, unit;
  std::int64_t kib = 0;
  while (info >> key >> kib && std::getline(info, unit)) {
    if (key == "MemAvailable:") return kib * 1024;
  }
  return 0;
}

}  // namespace quire
