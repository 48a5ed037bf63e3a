#include "server/support/core_files.h"

#include <sys/resource.h>

#include <fstream>

namespace quire {

bool keep_memory_out_of_core_files() {
  // core(5): no mapping is written, of files only their first page.
  std::ofstream filter("/proc/self/coredump_filter");
  filter << "0x10";
  filter.close();
  if (filter) return true;
  const rlimit none{0, 0};
  (void)::setrlimit(RLIMIT_CORE, &none);
  return false;
}

}  // namespace quire
