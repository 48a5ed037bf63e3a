#include "server/support/core_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/model_files.h"

namespace quire::testing {
namespace {

namespace fs = std::filesystem;

/// Has a child that knows `secret` end by abort(), and returns its core file; empty: there is none.
std::string core_of_child(const fs::path& folder, const std::string& secret, bool keep_out) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit all{RLIM_INFINITY, RLIM_INFINITY};
    if (::chdir(folder.c_str()) != 0 || ::setrlimit(RLIMIT_CORE, &all) != 0) ::_exit(1);
    // Not the literal of the program's own file.
    std::string known = secret + secret;
    if (keep_out && !keep_memory_out_of_core_files()) ::_exit(2);
    if (known.empty()) ::_exit(3);
    std::abort();
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  return {};
}

TEST(CoreFilesTest, HaveNoMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "core files of sanitizers have terabytes";
#else
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern") >> std::ws, pattern);
  if (pattern.empty() || pattern[0] == '|' || pattern[0] == '/')
    GTEST_SKIP() << "this system has core files elsewhere: " << pattern;
  std::string secret = "sk-";
  for (int i = 0; i < 40; ++i) secret += static_cast<char>('a' + i * 7 % 26);
  const TempFolder with, without;
  const std::string all = core_of_child(with.path(), secret, false);
  if (all.empty()) GTEST_SKIP() << "this system writes no core files";
  EXPECT_NE(all.find(secret), std::string::npos);
  const std::string kept = core_of_child(without.path(), secret, true);
  EXPECT_EQ(kept.find(secret), std::string::npos);
  EXPECT_LT(kept.size(), all.size() / 4);
#endif
}

TEST(CoreFilesTest, TheProcessSaysSo) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (!keep_memory_out_of_core_files()) ::_exit(1);
    std::string filter;
    std::ifstream("/proc/self/coredump_filter") >> filter;
    ::_exit(std::stoul(filter, nullptr, 16) == 0x10 ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace quire::testing
