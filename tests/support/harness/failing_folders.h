/// Reads of folders that fail. Only one source of a test's program includes this: it takes the
/// place of readdir(), for libraries, too.
#pragma once

#include <dirent.h>
#include <dlfcn.h>

#include <atomic>
#include <cerrno>

namespace quire::test {

inline std::atomic<int> g_folder_reads_left{-1};  // before the one that fails; -1: none does

/// Has the n-th read of an entry of any folder from now on (0: the next) fail, until destroyed.
class FailingFolder {
 public:
  explicit FailingFolder(int n) { g_folder_reads_left = n; }
  ~FailingFolder() { g_folder_reads_left = -1; }
  FailingFolder(const FailingFolder&) = delete;
  FailingFolder& operator=(const FailingFolder&) = delete;
  bool has_failed() const { return g_folder_reads_left < 0; }
};

}  // namespace quire::test

extern "C" dirent* readdir(DIR* folder) {
  static auto* const real = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  if (quire::test::g_folder_reads_left >= 0 && quire::test::g_folder_reads_left-- == 0) {
    errno = EIO;
    return nullptr;
  }
  return real(folder);
}
