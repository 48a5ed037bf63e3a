/// Steps of a repair that fail, or with which its process ends. Only one source of a test's program
/// includes this: it takes the place of rename() and unlink(), for libraries, too.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <string_view>

namespace quire::test {

inline std::atomic<int> g_steps_left{-1};  // before the one that is interrupted; -1: none is
inline std::atomic<bool> g_step_ends{false};
inline constexpr int kEndedAtStep = 9;  // exit status

/// Has the n-th step from now on (0: the next) fail, as on a full disk, until destroyed; or ends
/// the process before it.
class InterruptedStep {
 public:
  explicit InterruptedStep(int n, bool ends = false) {
    g_step_ends = ends;
    g_steps_left = n;
  }
  ~InterruptedStep() { g_steps_left = -1; }
  InterruptedStep(const InterruptedStep&) = delete;
  InterruptedStep& operator=(const InterruptedStep&) = delete;
  bool has_failed() const { return g_steps_left < 0; }
};

/// Returns whether this step is the one.
inline bool is_interrupted() {
  if (g_steps_left < 0 || g_steps_left-- != 0) return false;
  if (g_step_ends) ::_exit(kEndedAtStep);
  errno = ENOSPC;
  return true;
}

}  // namespace quire::test

/// A step puts something in the place of a record, or away from it.
extern "C" int rename(const char* from, const char* to) noexcept {
  using Rename = int (*)(const char*, const char*);
  static auto* const real = reinterpret_cast<Rename>(::dlsym(RTLD_NEXT, "rename"));
  const std::string_view source = from, target = to;
  const bool is_step = target.ends_with("/NEW_RECORD") || source.ends_with("/repair/db") ||
                       target.find("/damaged-") != std::string_view::npos;
  return is_step && quire::test::is_interrupted() ? -1 : real(from, to);
}

extern "C" int unlink(const char* path) noexcept {
  using Unlink = int (*)(const char*);
  static auto* const real = reinterpret_cast<Unlink>(::dlsym(RTLD_NEXT, "unlink"));
  const bool is_step = std::string_view(path).ends_with("/NEW_RECORD");
  return is_step && quire::test::is_interrupted() ? -1 : real(path);
}
