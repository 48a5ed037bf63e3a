/// Texts that the crash test's child writes and its parent expects.
#pragma once

#include <string>

namespace quire::test {

inline constexpr int kCrashIds = 6;

inline std::string crash_text(const std::string& id, long n) {
  std::string text = id + " version " + std::to_string(n) + ".";
  for (long i = 0; i < n % 7 * 40; ++i) text += " more of it";
  return text;
}

}  // namespace quire::test
