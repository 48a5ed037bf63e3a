#include "children.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace testing::internal {
namespace {

constexpr std::size_t kMostBytes = 1 << 20;  // kept of a child's output

std::string text_of(int file) {
  std::string text(kMostBytes, '\0');
  std::size_t size = 0;
  for (;;) {
    const ssize_t n = pread(file, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    size += static_cast<std::size_t>(n);
  }
  text.resize(size);
  return text;
}

std::string name_of(int status, bool killed) {
  if (killed) return "timeout";
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  const int code = WEXITSTATUS(status);
  return code == 0 ? "passed" : code == 1 ? "failed" : "exit " + std::to_string(code);
}

std::chrono::steady_clock::duration seconds(double s) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(s));
}

}  // namespace

double Children::left_s() const {
  return budget_s_ - std::chrono::duration<double>(Clock::now() - began_).count();
}

void Children::begin(Work work) {
  const double limit = std::min(work.limit_s, left_s());
  if (limit <= 0) return work.done({"not begun", 0, "", ""});
  const int output = memfd_create("output", MFD_CLOEXEC),
            records = memfd_create("records", MFD_CLOEXEC);
  std::fflush(nullptr);
  const pid_t pid = output < 0 || records < 0 ? -1 : fork();
  if (pid < 0) {
    const std::string why = std::strerror(errno);
    if (output >= 0) close(output);
    if (records >= 0) close(records);
    return work.done({"not begun", 0, "no process: " + why, ""});
  }
  if (pid == 0) {
    setpgid(0, 0);  // so that its own children can be killed with it
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    dup2(records, kRecords);
    const int status = work.run();
    std::fflush(nullptr);
    _exit(status);  // destructors of static objects may wait for a lost device
  }
  setpgid(pid, pid);
  const auto now = Clock::now();
  running_.push_back({std::move(work), pid, output, records, now, now + seconds(limit), false});
}

bool Children::ended(Running& child) {
  int status = 0;
  pid_t got = waitpid(child.pid, &status, WNOHANG);
  if (got == 0) {
    if (Clock::now() < child.end) return false;
    child.killed = true;
    kill(-child.pid, SIGKILL);
    // A process that the kernel cannot end, such as one inside a hung driver, is left behind.
    for (int i = 0; i < 200 && got == 0; ++i) {
      usleep(10'000);
      got = waitpid(child.pid, &status, WNOHANG);
    }
  } else {
    kill(-child.pid, SIGKILL);  // what it left running
  }
  Ended end;
  end.status = name_of(status, child.killed);
  end.seconds = std::chrono::duration<double>(Clock::now() - child.began).count();
  end.output = text_of(child.output);
  end.records = text_of(child.records);
  close(child.output);
  close(child.records);
  child.work.done(end);
  return true;
}

void Children::run() {
  while (next_ < waiting_.size() || !running_.empty()) {
    while (next_ < waiting_.size() && static_cast<int>(running_.size()) < jobs_) {
      Work work = std::move(waiting_[next_++]);
      begin(std::move(work));
    }
    std::vector<Running> still;
    std::vector<Running> now = std::move(running_);
    running_.clear();
    for (Running& child : now) {
      if (!ended(child)) still.push_back(std::move(child));
    }
    running_ = std::move(still);
    if (!running_.empty()) usleep(2'000);
  }
}

}  // namespace testing::internal
