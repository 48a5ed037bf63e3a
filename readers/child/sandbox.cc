#include "readers/child/sandbox.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_ADDRESS_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_ADDRESS_SANITIZER
#endif
#endif

namespace quire {
namespace {

Status refused(const char* what) {
  return Status::internal(std::string("cannot enter the sandbox: ") + what + ": " +
                          std::strerror(errno));
}

bool limit(__rlimit_resource resource, std::uint64_t value) {
  const rlimit both{value, value};
  return ::setrlimit(resource, &both) == 0;
}

/// Restricts files to those below /usr/share/poppler, for reading. Returns whether it did.
bool restrict_files() {
  landlock_ruleset_attr rules{};
  // Every right that the first version of Landlock knows.
  rules.handled_access_fs = (LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1;
  const int set = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (set < 0) return false;
  bool done = true;
  const int folder = ::open("/usr/share/poppler", O_PATH | O_CLOEXEC);
  if (folder >= 0) {
    landlock_path_beneath_attr beneath{};
    beneath.allowed_access = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
    beneath.parent_fd = folder;
    done = ::syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &beneath, 0) == 0;
    ::close(folder);
  }
  done = done && ::syscall(SYS_landlock_restrict_self, set, 0) == 0;
  ::close(set);
  return done;
}

constexpr int kAllowed[] = {
    // memory
    SCMP_SYS(brk), SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise),
    // open files
    SCMP_SYS(read), SCMP_SYS(readv), SCMP_SYS(pread64), SCMP_SYS(write), SCMP_SYS(writev),
    SCMP_SYS(lseek), SCMP_SYS(close), SCMP_SYS(fstat), SCMP_SYS(newfstatat), SCMP_SYS(stat),
    SCMP_SYS(lstat), SCMP_SYS(statx), SCMP_SYS(access), SCMP_SYS(faccessat), SCMP_SYS(faccessat2),
    SCMP_SYS(readlink), SCMP_SYS(readlinkat), SCMP_SYS(getcwd), SCMP_SYS(getdents64),
    SCMP_SYS(poll), SCMP_SYS(ppoll),
    // time, threads of this process alone, and what libraries ask about the machine
    SCMP_SYS(clock_gettime), SCMP_SYS(clock_getres), SCMP_SYS(gettimeofday), SCMP_SYS(futex),
    SCMP_SYS(sched_yield), SCMP_SYS(sched_getaffinity), SCMP_SYS(getpid), SCMP_SYS(gettid),
    SCMP_SYS(getuid), SCMP_SYS(geteuid), SCMP_SYS(getgid), SCMP_SYS(getegid), SCMP_SYS(sysinfo),
    SCMP_SYS(uname), SCMP_SYS(getrandom), SCMP_SYS(getrusage), SCMP_SYS(rseq),
    SCMP_SYS(set_robust_list),
    // signals and the end
    SCMP_SYS(rt_sigaction), SCMP_SYS(rt_sigprocmask), SCMP_SYS(rt_sigreturn), SCMP_SYS(sigaltstack),
    SCMP_SYS(restart_syscall), SCMP_SYS(exit), SCMP_SYS(exit_group)};

/// A call that is on no list fails with EPERM, so that a library that merely asks goes on.
bool filter_calls(bool may_read_files) {
  const std::unique_ptr<void, decltype(&seccomp_release)> filter(
      seccomp_init(SCMP_ACT_ERRNO(EPERM)), &seccomp_release);
  if (!filter) return false;
  bool ok = true;
  for (const int call : kAllowed)
    ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 0) == 0;
  // Memory, but none that is executable.
  for (const int call : {SCMP_SYS(mmap), SCMP_SYS(mprotect)})
    ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, call, 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0)) == 0;
  // abort() sends a signal to its own thread.
  ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(tgkill), 1,
                              SCMP_A0(SCMP_CMP_EQ, static_cast<scmp_datum_t>(::getpid()))) == 0;
  // Reading limits, not setting them.
  ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(prlimit64), 1,
                              SCMP_A2(SCMP_CMP_EQ, 0)) == 0;
  ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(fcntl), 1,
                              SCMP_A1(SCMP_CMP_EQ, F_GETFL)) == 0;
#ifdef QUIRE_ADDRESS_SANITIZER
  // The sanitizers ask through a pipe whether an address can be read.
  ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(pipe2), 0) == 0;
#endif
  if (may_read_files) {
    constexpr std::uint64_t kWriting = O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | __O_TMPFILE;
    ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                                SCMP_A2(SCMP_CMP_MASKED_EQ, kWriting, O_RDONLY)) == 0;
    ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_ALLOW, SCMP_SYS(open), 1,
                                SCMP_A1(SCMP_CMP_MASKED_EQ, kWriting, O_RDONLY)) == 0;
  }
  // What no library asks by mistake ends the process.
  for (const int call : {SCMP_SYS(socket), SCMP_SYS(connect), SCMP_SYS(execve), SCMP_SYS(execveat),
                         SCMP_SYS(ptrace), SCMP_SYS(process_vm_writev), SCMP_SYS(bpf)})
    ok = ok && seccomp_rule_add(filter.get(), SCMP_ACT_KILL_PROCESS, call, 0) == 0;
  return ok && seccomp_load(filter.get()) == 0;
}

}  // namespace

Status enter_sandbox(const SandboxLimits& limits) {
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return refused("no_new_privs");
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0) return refused("dumpable");
  // The kernel sends SIGXCPU, which says what happened, only below the hard limit.
  const rlimit cpu{limits.cpu_seconds, limits.cpu_seconds + 2u};
  if (!limit(RLIMIT_CORE, 0) || ::setrlimit(RLIMIT_CPU, &cpu) != 0 || !limit(RLIMIT_FSIZE, 0) ||
      !limit(RLIMIT_NOFILE, 16))
    return refused("limits");
#ifndef QUIRE_ADDRESS_SANITIZER
  if (!limit(RLIMIT_AS, limits.memory_bytes)) return refused("memory limit");
#endif
  const bool may_read_files = restrict_files();
  if (!filter_calls(may_read_files)) return refused("seccomp");
  return {};
}

}  // namespace quire
