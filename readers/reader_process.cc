#include "readers/reader_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "base/index.h"
#include "readers/result_codec.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { reset(); }
  void reset() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Pipe {
  Fd read_end, write_end;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    return Status::io(std::string("cannot make a pipe: ") + std::strerror(errno));
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

std::string bytes_text(std::uint64_t bytes) {
  if (bytes >= std::uint64_t{1} << 30) return std::to_string(bytes >> 30) + " GiB";
  if (bytes >= std::uint64_t{1} << 20) return std::to_string(bytes >> 20) + " MiB";
  return std::to_string(bytes) + " bytes";
}

/// The child and its two pipes. The child ends with the object.
class Child {
 public:
  ~Child() {
    if (pid_ > 0) (void)end();
  }
  Status start(const fs::path& program, int file, const ReaderRequest& request) {
    QUIRE_ASSIGN_OR_RETURN(Pipe out, make_pipe());
    QUIRE_ASSIGN_OR_RETURN(Pipe errors, make_pipe());
    const ReaderLimits& limits = request.limits;
    std::vector<std::string> words = {program.string(),
                                      request.name,
                                      request.encoding,
                                      std::to_string(limits.file_bytes),
                                      std::to_string(limits.text_bytes),
                                      std::to_string(limits.documents),
                                      std::to_string(limits.memory_bytes),
                                      std::to_string(limits.cpu_seconds)};
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    char* environment[] = {nullptr};

    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_adddup2(&actions, file, 0);
    posix_spawn_file_actions_adddup2(&actions, out.write_end.get(), 1);
    posix_spawn_file_actions_adddup2(&actions, errors.write_end.get(), 2);
    posix_spawn_file_actions_addclosefrom_np(&actions, 3);
    // A group of its own, so that Ctrl-C reaches the parent alone, and no blocked signal.
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
    const int rc = ::posix_spawn(&pid_, program.c_str(), &actions, &attributes, argv.data(),
                                 environment);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (rc != 0) {
      pid_ = -1;
      return Status::io("cannot start " + program.string() + ": " + std::strerror(rc));
    }
    out_ = std::move(out.read_end);
    errors_ = std::move(errors.read_end);
    return {};
  }

  enum class Outcome : unsigned char { kEnded, kTooMuch, kTooLong };
  /// Collects what the child writes, at most `most` bytes of it, until it has closed its output.
  Outcome collect(std::uint64_t most, Clock::time_point deadline) {
    std::array<char, 64 << 10> buffer;
    while (out_.get() >= 0 || errors_.get() >= 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline -
                                                                              Clock::now());
      if (left.count() <= 0) return Outcome::kTooLong;
      pollfd polled[2] = {{out_.get(), POLLIN, 0}, {errors_.get(), POLLIN, 0}};
      if (::poll(polled, 2, static_cast<int>(left.count())) <= 0) continue;
      for (int i = 0; i < 2; ++i) {
        if (polled[i].revents == 0) continue;
        Fd& source = i == 0 ? out_ : errors_;
        std::string& sink = i == 0 ? output_ : complaint_;
        const auto n = ::read(source.get(), buffer.data(), buffer.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
          source.reset();
          continue;
        }
        if (i == 1 && sink.size() > 4096) continue;  // the first words say what matters
        sink.append(buffer.data(), to_size(n));
        if (output_.size() > most) return Outcome::kTooMuch;
      }
    }
    return Outcome::kEnded;
  }
  /// Ends the child, if it still runs, and returns its status.
  int end() {
    out_.reset();
    errors_.reset();
    ::kill(pid_, SIGKILL);
    return reap();
  }
  /// Waits until the child has exited, and no longer than to the deadline. Then it is ended.
  int exit_status(Clock::time_point deadline) {
    const Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline -
                                                                            Clock::now());
    pollfd polled = {process.get(), POLLIN, 0};
    if (left.count() > 0 && ::poll(&polled, 1, static_cast<int>(left.count())) == 1) return reap();
    return end();
  }
  const std::string& output() const { return output_; }
  const std::string& complaint() const { return complaint_; }

 private:
  int reap() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    return status;
  }

  pid_t pid_ = -1;
  Fd out_, errors_;
  std::string output_, complaint_;
};

bool ran_out_of_memory(const std::string& complaint) {
  for (const char* words : {"ut of memory", "bad_alloc", "failed to allocate", "annot allocate"})
    if (complaint.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

Result<ReaderProcess> ReaderProcess::find() {
  std::error_code error;
  if (const char* named = std::getenv("QUIRE_READER"); named && *named) {
    const char* why = ::access(named, X_OK) != 0           ? std::strerror(errno)
                      : !fs::is_regular_file(named, error) ? "it is no file"
                                                           : nullptr;
    if (!why) return ReaderProcess(fs::path(named));
    return Status::invalid("QUIRE_READER",
                           "the environment variable QUIRE_READER names " + std::string(named) +
                               ", which cannot be run (" + why +
                               "); name the program quire-reader in it, or unset it");
  }
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = self.parent_path();
  const fs::path places[] = {folder / "quire-reader",
                             folder.parent_path() / "libexec" / "quire" / "quire-reader"};
  for (const auto& place : places)
    if (::access(place.c_str(), X_OK) == 0) return ReaderProcess(place);
  return Status::not_found("the program quire-reader, which reads files, is neither at " +
                           places[0].string() + " nor at " + places[1].string() +
                           "; install it there, or name it in QUIRE_READER");
}

Result<std::vector<ReadDocument>> ReaderProcess::read_file(const fs::path& path,
                                                           const ReaderRequest& request) const {
  // Without O_NONBLOCK a named pipe would wait for its writer.
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const std::string message = request.name + ": " + std::strerror(errno);
    return errno == ENOENT ? Status::not_found(message) : Status::io(message);
  }
  struct stat info;
  if (::fstat(file.get(), &info) != 0)
    return Status::io(request.name + ": " + std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return Status::invalid(request.name, request.name + ": is not a regular file");
  if (to_size(info.st_size) > request.limits.file_bytes)
    return Status::exhausted(request.name + ": has " + bytes_text(to_size(info.st_size)) +
                             ", and files of at most " + bytes_text(request.limits.file_bytes) +
                             " are read; split it");
  return run(file.get(), request);
}

Result<std::vector<ReadDocument>> ReaderProcess::read_bytes(std::string_view bytes,
                                                            const ReaderRequest& request) const {
  if (bytes.size() > request.limits.file_bytes)
    return Status::exhausted(request.name + ": has " + bytes_text(bytes.size()) +
                             ", and files of at most " + bytes_text(request.limits.file_bytes) +
                             " are read; split it");
  const Fd file(::memfd_create("quire-reader-input", MFD_CLOEXEC));
  if (file.get() < 0) return Status::io(request.name + ": " + std::strerror(errno));
  while (!bytes.empty()) {
    const auto n = ::write(file.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return Status::io(request.name + ": " + std::strerror(errno));
    bytes.remove_prefix(to_size(n));
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0)
    return Status::io(request.name + ": " + std::strerror(errno));
  return run(file.get(), request);
}

Result<std::vector<ReadDocument>> ReaderProcess::run(int file, const ReaderRequest& request) const {
  const ReaderLimits& limits = request.limits;
  Child child;
  if (const Status s = child.start(program_, file, request); !s.ok())
    return s.with_context(request.name);
  // Marks, titles and warnings come beside the text.
  const auto deadline = Clock::now() + std::chrono::seconds(limits.wall_seconds);
  const auto outcome = child.collect(limits.text_bytes * 2 + (std::uint64_t{16} << 20), deadline);
  const int status = outcome == Child::Outcome::kEnded ? child.exit_status(deadline) : child.end();
  const std::string format = decode_format(child.output());
  const std::string reader = format.empty() ? "the reader" : "the " + format + " reader";
  const auto fail = [&](Code code, const std::string& what) {
    return Status(code, request.name + ": " + reader + " " + what);
  };
  if (outcome == Child::Outcome::kTooLong)
    return fail(Code::kResourceExhausted, "ran past its limit of " +
                                              std::to_string(limits.wall_seconds) +
                                              " s; the file may be damaged, or is to be split");
  if (outcome == Child::Outcome::kTooMuch)
    return fail(Code::kResourceExhausted,
                "wrote more than " + bytes_text(limits.text_bytes) + " of text; split the file");
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
    return fail(Code::kResourceExhausted, "ran past its limit of " +
                                              std::to_string(limits.cpu_seconds) +
                                              " s of computing; the file may be damaged, or is to "
                                              "be split");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    if (ran_out_of_memory(child.complaint()))
      return fail(Code::kResourceExhausted, "ran past its memory limit of " +
                                                bytes_text(limits.memory_bytes) +
                                                "; the file may be damaged, or is to be split");
    const std::string how = WIFSIGNALED(status)
                                ? "signal " + std::to_string(WTERMSIG(status))
                                : "exit code " + std::to_string(WEXITSTATUS(status));
    return fail(Code::kInternal, "crashed (" + how + "); the file may be damaged");
  }
  auto result = decode_result(child.output(), limits);
  if (!result.ok()) {
    if (result.code() == Code::kCorruption)
      return fail(Code::kInternal, "gave no result that can be used; the file may be damaged");
    return result.status().with_context(request.name);
  }
  return result;
}

}  // namespace quire
