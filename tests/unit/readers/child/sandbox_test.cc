// In the sandbox a process reads and writes what it has open, and reaches nothing else.
#include "readers/child/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace quire {
namespace {

/// Runs `act` in a sandboxed child. Returns its exit code, or minus the signal that ended it; 99:
/// the sandbox was refused.
int in_sandbox(const std::function<int()>& act) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (!enter_sandbox({.memory_bytes = 4ull << 30, .cpu_seconds = 5}).ok()) ::_exit(99);
    ::_exit(act());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Sandbox, OpenFilesAndMemoryStay) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(in_sandbox([&] {
              void* memory = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
              return memory != MAP_FAILED && ::write(ends[1], "x", 1) == 1 ? 0 : 1;
            }),
            0);
  char c = 0;
  EXPECT_EQ(::read(ends[0], &c, 1), 1);
  EXPECT_EQ(c, 'x');
}

TEST(Sandbox, FilesNetworkAndOtherProgramsAreOutOfReach) {
  EXPECT_EQ(in_sandbox([] { return ::open("/etc/passwd", O_RDONLY) < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(in_sandbox([] {
              return ::open("/tmp/quire-sandbox-test", O_WRONLY | O_CREAT, 0600) < 0 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(in_sandbox([] { return ::fork() < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(in_sandbox([] { return ::kill(::getppid(), 0) < 0 ? 0 : 1; }), 0);
  EXPECT_EQ(in_sandbox([] {
              return ::mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                            0) == MAP_FAILED
                         ? 0
                         : 1;
            }),
            0);
  EXPECT_EQ(in_sandbox([] { return ::socket(AF_INET, SOCK_STREAM, 0); }), -SIGSYS);
  EXPECT_EQ(in_sandbox([] {
              char name[] = "/bin/true";
              char* argv[] = {name, nullptr};
              return ::execv(name, argv);
            }),
            -SIGSYS);
  EXPECT_EQ(
      in_sandbox([] { return static_cast<int>(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr)); }),
      -SIGSYS);
}

}  // namespace
}  // namespace quire
