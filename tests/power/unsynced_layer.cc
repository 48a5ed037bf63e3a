// A library for LD_PRELOAD that notes what a program does to the files of one folder, and kills the
// program at a chosen call. From the notes, disk_image.py makes what a disk may hold after the
// power failed in this moment.
//
// Environment: QUIRE_POWER_FOLDER (absolute, without links), QUIRE_POWER_NOTES (the file of notes),
// QUIRE_POWER_CUT_AT (number of the noted call before which the program dies; 0: none; after the
// signal SIGRTMIN + 5 it is the next one),
// QUIRE_POWER_SYNC_US (longest pause of a sync), QUIRE_POWER_SEED (of the pauses).
//
// Calls may fail: QUIRE_POWER_FAIL_AT (number of the first noted call that does),
// QUIRE_POWER_FAIL_CALLS (how many), QUIRE_POWER_FAIL_ERRNO, QUIRE_POWER_FAIL_TORN (1: half of a
// failing write is written). QUIRE_POWER_READ_AT, QUIRE_POWER_READ_CALLS and QUIRE_POWER_READ_ERRNO
// are the same for reads; 0 as the error is a read of another place of the file.
// Writes may go astray and return as if they had not: QUIRE_POWER_MISDIRECT_AT (number of the first
// one among writes of files whose path has the text QUIRE_POWER_MISDIRECT_FILE),
// QUIRE_POWER_MISDIRECT_CALLS and QUIRE_POWER_MISDIRECT_KIND: `lost` (nothing is written), `torn`
// (half of it), `moved` (to another place of the file) or `other` (into another open file). The
// file is as long as if the write were there. Each one is told on standard error.
// QUIRE_POWER_CLOCK_S: the signal SIGRTMIN + 6 sets the wall clock forward by so many seconds
// (negative: back), and the next one sets it right again.
//
// The notes also say in which thread the program died, and which call was the first to fail.
//
// A note is a Note and behind it both paths and the bytes. A call is noted after it was carried out
// and before it returns, under one lock. A sync is noted when it begins: what was written before
// it began is durable. No sync reaches the disk. What cannot be noted (writable mappings,
// buffered streams, links) ends the program with a message.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct Note {
  char op;     ///< see disk_image.py
  char flags;  ///< of op 'o': 1 created, 2 truncated; of every op: 8 the call of the cut
  std::uint16_t path_bytes, other_bytes, unused;
  std::uint32_t handle;  ///< number of the opening of a file
  std::uint64_t offset, bytes, data_bytes;
};

constexpr int kMaxDescriptors = 65536;
std::array<std::atomic<std::uint32_t>, kMaxDescriptors> g_handles;  // 0: not under the folder
std::mutex g_mu;                                                    // guards what follows
// No object with a constructor: that might run after begin().
char g_folder[PATH_MAX];
int g_notes = -1;
std::uint32_t g_next_handle = 1;
std::uint64_t g_calls = 0, g_cut_at = 0, g_random = 1;
std::atomic<bool> g_cut_now{false};  // the next call is that of the cut
useconds_t g_sync_us = 0;
/// The calls of one kind that fail.
struct Failing {
  std::uint64_t first = 0, calls = 0;  // first 0: none
  int error = EIO;
  bool is(std::uint64_t call) const { return first > 0 && call >= first && call - first < calls; }
};
Failing g_failing, g_failing_reads;
bool g_torn = false;
Failing g_misdirected;        // of writes; `calls` of them go astray
char g_misdirected_file[64];  // they are of files whose path has this text
std::string_view g_misdirected_kind;
std::uint64_t g_writes = 0;  // of such files
std::atomic<std::uint64_t> g_reads{0};
std::atomic<std::int64_t> g_clock_jump{0}, g_clock_s{0};

[[noreturn]] void refuse(const char* what) {
  std::fprintf(stderr, "unsynced_layer: %s cannot be noted\n", what);
  std::_Exit(99);
}

template <class F>
F* real(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (!found) refuse(name);
  return reinterpret_cast<F*>(found);
}
#define REAL(name)                                              \
  static auto* const real_##name = real<decltype(name)>(#name); \
  (void)real_##name

void write_notes(const iovec* parts, int count) {
  for (int i = 0; i < count; ++i) {
    const char* bytes = static_cast<const char*>(parts[i].iov_base);
    for (std::size_t left = parts[i].iov_len; left > 0;) {
      const long n = ::syscall(SYS_write, g_notes, bytes, left);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) refuse("a call, as the notes are full,");
      bytes += n;
      left -= static_cast<std::size_t>(n);
    }
  }
}

/// Needs g_mu.
void note(char op, std::uint32_t handle, std::uint64_t offset, std::uint64_t bytes,
          const std::string& path = {}, const std::string& other = {}, const void* data = nullptr,
          int flags = 0) {
  const Note n{op,
               static_cast<char>(flags),
               static_cast<std::uint16_t>(path.size()),
               static_cast<std::uint16_t>(other.size()),
               0,
               handle,
               offset,
               bytes,
               data ? bytes : 0};
  const iovec parts[] = {{const_cast<Note*>(&n), sizeof n},
                         {const_cast<char*>(path.data()), path.size()},
                         {const_cast<char*>(other.data()), other.size()},
                         {const_cast<void*>(data), data ? bytes : 0}};
  write_notes(parts, 4);
}

/// Counts a call that is about to be carried out. At the chosen one, `last` notes it and the
/// program dies. Needs g_mu, so that no other call comes between.
template <class F>
void count(F&& last) {
  if (++g_calls != g_cut_at && !g_cut_now.load()) return;
  char thread[16] = "";
  (void)::pthread_getname_np(::pthread_self(), thread, sizeof thread);
  note('k', 0, 0, 0, thread);
  last();
  ::syscall(SYS_kill, ::getpid(), SIGKILL);
  for (;;) ::pause();
}
constexpr int kCut = 8;

/// Returns whether the call that is about to be carried out fails instead, with errno set: `op` on
/// an open file or on a path. Such a call is counted, and the first one noted. Needs g_mu.
bool fails(char op, std::uint32_t handle, const std::string& path = {}) {
  if (g_cut_now.load() || !g_failing.is(g_calls + 1)) return false;
  if (++g_calls == g_failing.first) note('f', handle, 0, 0, path, std::string(1, op));
  errno = g_failing.error;
  return true;
}

/// Returns the path without ".", empty parts and a relative beginning; empty: not under the folder.
std::string under_folder(int dir, const char* path) {
  if (g_notes < 0 || !path) return {};
  const int before = errno;
  std::string full;
  if (path[0] != '/') {
    char base[PATH_MAX];
    if (dir == AT_FDCWD) {
      if (::getcwd(base, sizeof base)) full = base;
    } else {
      char link[64];
      std::snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
      const ssize_t n = ::readlink(link, base, sizeof base);
      if (n > 0) full.assign(base, static_cast<std::size_t>(n));
    }
    full += '/';
  }
  full += path;
  std::string out;
  for (std::size_t at = 0; at < full.size();) {
    std::size_t end = full.find('/', at);
    if (end == std::string::npos) end = full.size();
    const std::string part = full.substr(at, end - at);
    if (part == "..")
      out.resize(out.rfind('/') == std::string::npos ? 0 : out.rfind('/'));
    else if (!part.empty() && part != ".")
      out += '/' + part;
    at = end + 1;
  }
  errno = before;
  const std::size_t length = std::strlen(g_folder);
  if (out == g_folder) return "/";
  if (out.compare(0, length, g_folder) != 0 || out[length] != '/') return {};
  return out.substr(length);
}

std::uint32_t handle_of(int fd) {
  return fd >= 0 && fd < kMaxDescriptors ? g_handles[static_cast<std::size_t>(fd)].load() : 0;
}
void set_handle(int fd, std::uint32_t handle) {
  if (fd >= 0 && fd < kMaxDescriptors) g_handles[static_cast<std::size_t>(fd)] = handle;
}

bool is_there(const std::string& path) {
  struct stat st;
  const int before = errno;
  const bool found = ::lstat((std::string(g_folder) + path).c_str(), &st) == 0;
  errno = before;
  return found;
}

template <class Open>
int noted_open(int dir, const char* path, int flags, Open&& open) {
  const std::string at = under_folder(dir, path);
  // A file without a name is gone after any crash.
  if (at.empty() || (flags & O_TMPFILE) == O_TMPFILE) {
    const int fd = open();
    set_handle(fd, 0);
    return fd;
  }
  std::lock_guard lock(g_mu);
  const int changes = ((flags & O_CREAT) && !is_there(at) ? 1 : 0) | (flags & O_TRUNC ? 2 : 0);
  if (changes && fails('o', 0, at)) return -1;
  if (changes) count([&] { note('o', g_next_handle, 0, 0, at, {}, nullptr, changes | kCut); });
  const int fd = open();
  if (fd < 0) return fd;
  set_handle(fd, g_next_handle);
  note('o', g_next_handle++, 0, 0, at, {}, nullptr, changes);
  return fd;
}

/// Returns the next number of a row that the seed chooses. Needs g_mu.
std::uint64_t next_random() {
  g_random = g_random * 6364136223846793005ULL + 1442695040888963407ULL;
  return g_random >> 33;
}

std::string path_of(int fd) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof path);
  return n > 0 ? std::string(path, static_cast<std::size_t>(n)) : std::string();
}

/// Returns another open file of the folder; -1: there is none. Needs g_mu.
int another_file(int fd) {
  int found[256], count = 0;
  for (int other = 0; other < kMaxDescriptors && count < 256; ++other) {
    struct stat st;
    if (!handle_of(other) || handle_of(other) == handle_of(fd)) continue;
    if (::fstat(other, &st) == 0 && S_ISREG(st.st_mode)) found[count++] = other;
  }
  return count == 0 ? -1 : found[next_random() % static_cast<unsigned>(count)];
}

/// Returns whether the write that is about to be carried out goes astray. Needs g_mu.
bool goes_astray(int fd) {
  if (g_misdirected.first == 0) return false;
  if (path_of(fd).find(g_misdirected_file, std::strlen(g_folder)) == std::string::npos)
    return false;
  return g_misdirected.is(++g_writes);
}

/// A file for writing at any place, whatever it was opened for.
class AnyPlace {
 public:
  explicit AnyPlace(int fd) : handle_(handle_of(fd)) {
    char link[64];
    std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    fd_ = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, link, O_WRONLY | O_CLOEXEC));
    struct stat st {};
    if (fd_ < 0 || ::fstat(fd_, &st) != 0) refuse("a write that goes astray");
    size_ = static_cast<std::uint64_t>(st.st_size);
  }
  AnyPlace(const AnyPlace&) = delete;
  AnyPlace& operator=(const AnyPlace&) = delete;
  ~AnyPlace() { ::syscall(SYS_close, fd_); }
  /// Returns a place of this file that lies in its sector as `offset` does.
  std::uint64_t place_like(std::uint64_t offset) const {
    constexpr std::uint64_t kSector = 512;
    return next_random() % (size_ / kSector + 1) * kSector + offset % kSector;
  }
  void write(const void* data, std::uint64_t bytes, std::uint64_t offset) {
    if (bytes == 0) return;
    if (::syscall(SYS_pwrite64, fd_, data, bytes, offset) != static_cast<long>(bytes))
      refuse("a write that goes astray");
    note('w', handle_, offset, bytes, {}, {}, data);
    size_ = std::max(size_, offset + bytes);
  }
  void grow(std::uint64_t size) {
    if (size <= size_) return;
    if (::syscall(SYS_ftruncate, fd_, size) != 0) refuse("a write that goes astray");
    note('t', handle_, size, 0);
    size_ = size;
  }

 private:
  std::uint32_t handle_;
  int fd_;
  std::uint64_t size_ = 0;
};

/// Carries out a write that goes astray. Needs g_mu.
ssize_t misdirect(int fd, const void* data, std::uint64_t offset, std::size_t bytes) {
  AnyPlace file(fd);
  const int other = g_misdirected_kind == "other" ? another_file(fd) : -1;
  std::string to = "nowhere";
  if (other >= 0) {
    AnyPlace target(other);
    const std::uint64_t place = target.place_like(offset);
    target.write(data, bytes, place);
    to = path_of(other) + " at " + std::to_string(place);
  } else if (g_misdirected_kind == "moved") {
    std::uint64_t place = file.place_like(offset);
    if (place == offset) place = offset >= 512 ? offset - 512 : offset + 512;
    file.write(data, bytes, place);
    to = std::to_string(place);
  } else if (g_misdirected_kind == "torn") {
    file.write(data, bytes / 2, offset);
    to = "only half";
  }
  file.grow(offset + bytes);
  std::fprintf(stderr, "unsynced_layer: astray: %zu bytes of %s at %llu went to %s\n", bytes,
               path_of(fd).c_str(), static_cast<unsigned long long>(offset), to.c_str());
  return static_cast<ssize_t>(bytes);
}

/// A write whose place is known; `write` carries it out, and `skip` moves the position of the
/// descriptor where it must not be.
template <class Write, class Skip>
ssize_t noted_write(int fd, const void* data, std::uint64_t offset, std::size_t bytes,
                    Write&& write, Skip&& skip) {
  const std::uint32_t handle = handle_of(fd);
  const bool failing = fails('w', handle);
  if (failing && !g_torn) return -1;
  if (!failing) count([&] { note('w', handle, offset, bytes, {}, {}, data, kCut); });
  if (!failing && bytes > 0 && goes_astray(fd)) {
    skip();
    return misdirect(fd, data, offset, bytes);
  }
  const ssize_t n = write(failing ? bytes / 2 : bytes);
  if (n > 0) note('w', handle, offset, static_cast<std::uint64_t>(n), {}, {}, data);
  if (failing) errno = g_failing.error;
  return failing ? -1 : n;
}

/// Returns where write() puts the next byte. Needs g_mu.
std::uint64_t position(int fd) {
  if (::fcntl(fd, F_GETFL) & O_APPEND) {
    struct stat st;
    if (::fstat(fd, &st) != 0) refuse("a write");
    return static_cast<std::uint64_t>(st.st_size);
  }
  return static_cast<std::uint64_t>(::lseek(fd, 0, SEEK_CUR));
}

int noted_sync(int fd, char op) {
  const std::uint32_t handle = handle_of(fd);
  useconds_t pause = 0;
  {
    std::lock_guard lock(g_mu);
    if (fails(op, handle)) return -1;
    count([&] { note(op, handle, 0, 0, {}, {}, nullptr, kCut); });
    note(op, handle, 0, 0);
    const std::uint64_t random = next_random();
    if (g_sync_us > 0) pause = static_cast<useconds_t>(random % g_sync_us);
  }
  if (pause > 0) ::usleep(pause);
  return 0;
}

template <class Call>
int noted_change(char op, const std::string& path, const std::string& other, Call&& call) {
  if (path.empty() && other.empty()) return call();
  if (op == 'r' && (path.empty() || other.empty())) refuse("a rename out of the folder");
  std::lock_guard lock(g_mu);
  if (fails(op, 0, path)) return -1;
  count([&] { note(op, 0, 0, 0, path, other, nullptr, kCut); });
  const int result = call();
  if (result == 0) note(op, 0, 0, 0, path, other);
  return result;
}

int noted_size(int fd, char op, std::uint64_t offset, std::uint64_t bytes, int (*call)(int, off_t),
               off_t size) {
  std::lock_guard lock(g_mu);
  if (fails(op, handle_of(fd))) return -1;
  count([&] { note(op, handle_of(fd), offset, bytes, {}, {}, nullptr, kCut); });
  const int result = call(fd, size);
  if (result == 0) note(op, handle_of(fd), offset, bytes);
  return result;
}

bool writes(const char* mode) { return std::strpbrk(mode, "wa+") != nullptr; }

/// Carries a read out, unless it fails or goes to another place.
template <class Read>
ssize_t watched_read(int fd, off_t offset, Read&& read) {
  if (!handle_of(fd) || !g_failing_reads.is(++g_reads)) return read(offset);
  if (g_failing_reads.error == 0) return read(offset >= 4096 ? offset - 4096 : offset + 4096);
  errno = g_failing_reads.error;
  return -1;
}

std::uint64_t number(const char* name) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : 0;
}

__attribute__((constructor)) void begin() {
  const char *folder = std::getenv("QUIRE_POWER_FOLDER"), *notes = std::getenv("QUIRE_POWER_NOTES");
  // Programs that this one starts are not watched.
  ::unsetenv("LD_PRELOAD");
  if (!folder || !notes || std::strlen(folder) >= sizeof g_folder) return;
  std::strcpy(g_folder, folder);
  g_cut_at = number("QUIRE_POWER_CUT_AT");
  // SIGKILL from outside could come between a call and its note.
  struct sigaction at_next {};
  at_next.sa_handler = [](int) { g_cut_now = true; };
  at_next.sa_flags = SA_RESTART;
  ::sigaction(SIGRTMIN + 5, &at_next, nullptr);
  at_next.sa_handler = [](int) { g_clock_jump = g_clock_jump == 0 ? g_clock_s.load() : 0; };
  ::sigaction(SIGRTMIN + 6, &at_next, nullptr);
  const char* clock = std::getenv("QUIRE_POWER_CLOCK_S");
  g_clock_s = clock ? std::strtoll(clock, nullptr, 10) : 0;
  g_failing = {number("QUIRE_POWER_FAIL_AT"), number("QUIRE_POWER_FAIL_CALLS"),
               static_cast<int>(number("QUIRE_POWER_FAIL_ERRNO"))};
  g_torn = number("QUIRE_POWER_FAIL_TORN") != 0;
  g_failing_reads = {number("QUIRE_POWER_READ_AT"), number("QUIRE_POWER_READ_CALLS"),
                     static_cast<int>(number("QUIRE_POWER_READ_ERRNO"))};
  g_misdirected = {number("QUIRE_POWER_MISDIRECT_AT"), number("QUIRE_POWER_MISDIRECT_CALLS")};
  const char *kind = std::getenv("QUIRE_POWER_MISDIRECT_KIND"),
             *file = std::getenv("QUIRE_POWER_MISDIRECT_FILE");
  for (const char* known : {"lost", "torn", "moved", "other"})
    if (kind && std::strcmp(kind, known) == 0) g_misdirected_kind = known;
  if (g_misdirected.first > 0 && g_misdirected_kind.empty()) refuse("that kind of astray writes");
  if (file && std::strlen(file) < sizeof g_misdirected_file) std::strcpy(g_misdirected_file, file);
  g_sync_us = static_cast<useconds_t>(number("QUIRE_POWER_SYNC_US"));
  g_random = number("QUIRE_POWER_SEED") * 2 + 1;
  const long fd = ::syscall(SYS_openat, AT_FDCWD, notes, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0) refuse("anything, as the file of notes cannot be made,");
  // High, so that the program's own descriptors are as without this library.
  g_notes = ::fcntl(static_cast<int>(fd), F_DUPFD_CLOEXEC, 900);
  ::syscall(SYS_close, fd);
  if (g_notes < 0) refuse("anything, as there are too few descriptors,");
}

}  // namespace

extern "C" {

#define WITH_MODE                      \
  mode_t mode = 0;                     \
  if (flags & (O_CREAT | O_TMPFILE)) { \
    va_list rest;                      \
    va_start(rest, flags);             \
    mode = va_arg(rest, mode_t);       \
    va_end(rest);                      \
  }

int open(const char* path, int flags, ...) {
  REAL(open);
  WITH_MODE
  return noted_open(AT_FDCWD, path, flags, [&] { return real_open(path, flags, mode); });
}
int open64(const char* path, int flags, ...) {
  REAL(open64);
  WITH_MODE
  return noted_open(AT_FDCWD, path, flags, [&] { return real_open64(path, flags, mode); });
}
int openat(int dir, const char* path, int flags, ...) {
  REAL(openat);
  WITH_MODE
  return noted_open(dir, path, flags, [&] { return real_openat(dir, path, flags, mode); });
}
int openat64(int dir, const char* path, int flags, ...) {
  REAL(openat64);
  WITH_MODE
  return noted_open(dir, path, flags, [&] { return real_openat64(dir, path, flags, mode); });
}
int creat(const char* path, mode_t mode) { return open(path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

FILE* fopen(const char* path, const char* mode) {
  REAL(fopen);
  if (writes(mode) && !under_folder(AT_FDCWD, path).empty()) refuse("a stream that writes");
  return real_fopen(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  REAL(fopen64);
  if (writes(mode) && !under_folder(AT_FDCWD, path).empty()) refuse("a stream that writes");
  return real_fopen64(path, mode);
}
FILE* fdopen(int fd, const char* mode) noexcept {
  REAL(fdopen);
  if (writes(mode) && handle_of(fd)) refuse("a stream that writes");
  return real_fdopen(fd, mode);
}

int fclose(FILE* file) {
  REAL(fclose);
  set_handle(::fileno(file), 0);
  return real_fclose(file);
}
int close(int fd) {
  REAL(close);
  set_handle(fd, 0);
  return real_close(fd);
}
int dup(int fd) noexcept {
  REAL(dup);
  const int copy = real_dup(fd);
  set_handle(copy, handle_of(fd));
  return copy;
}
int dup2(int fd, int to) noexcept {
  REAL(dup2);
  const int copy = real_dup2(fd, to);
  set_handle(copy, handle_of(fd));
  return copy;
}
int dup3(int fd, int to, int flags) noexcept {
  REAL(dup3);
  const int copy = real_dup3(fd, to, flags);
  set_handle(copy, handle_of(fd));
  return copy;
}

ssize_t write(int fd, const void* data, size_t bytes) {
  REAL(write);
  if (!handle_of(fd)) return real_write(fd, data, bytes);
  std::lock_guard lock(g_mu);
  return noted_write(
      fd, data, position(fd), bytes, [&](std::size_t n) { return real_write(fd, data, n); },
      [&] { ::lseek(fd, static_cast<off_t>(bytes), SEEK_CUR); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  REAL(pwrite);
  if (!handle_of(fd)) return real_pwrite(fd, data, bytes, offset);
  std::lock_guard lock(g_mu);
  return noted_write(
      fd, data, static_cast<std::uint64_t>(offset), bytes,
      [&](std::size_t n) { return real_pwrite(fd, data, n, offset); }, [] {});
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  return pwrite(fd, data, bytes, offset);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  REAL(pread);
  return watched_read(fd, offset, [&](off_t at) { return real_pread(fd, data, bytes, at); });
}
ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
  return pread(fd, data, bytes, offset);
}
int clock_gettime(clockid_t clock, timespec* out) noexcept {
  REAL(clock_gettime);
  const int result = real_clock_gettime(clock, out);
  if (result == 0 && clock == CLOCK_REALTIME) out->tv_sec += g_clock_jump.load();
  return result;
}
ssize_t writev(int fd, const iovec* parts, int count) {
  REAL(writev);
  if (!handle_of(fd)) return real_writev(fd, parts, count);
  std::string all;
  for (int i = 0; i < count; ++i)
    all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return write(fd, all.data(), all.size());
}
ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  REAL(pwritev);
  if (handle_of(fd)) refuse("pwritev");
  return real_pwritev(fd, parts, count, offset);
}
ssize_t sendfile(int to, int from, off_t* offset, size_t count) noexcept {
  REAL(sendfile);
  if (!handle_of(to)) return real_sendfile(to, from, offset, count);
  std::vector<char> piece(std::min<size_t>(count, 1 << 20));
  const ssize_t got = offset ? ::pread(from, piece.data(), piece.size(), *offset)
                             : ::read(from, piece.data(), piece.size());
  if (got <= 0) return got;
  const ssize_t sent = ::write(to, piece.data(), static_cast<size_t>(got));
  if (offset && sent > 0) *offset += sent;
  if (!offset && sent < got) ::lseek(from, std::max<ssize_t>(sent, 0) - got, SEEK_CUR);
  return sent;
}
ssize_t copy_file_range(int from, off64_t* at, int to, off64_t* to_at, size_t bytes,
                        unsigned flags) {
  REAL(copy_file_range);
  if (handle_of(to)) refuse("copy_file_range");
  return real_copy_file_range(from, at, to, to_at, bytes, flags);
}

int ftruncate(int fd, off_t size) noexcept {
  REAL(ftruncate);
  if (!handle_of(fd)) return real_ftruncate(fd, size);
  return noted_size(fd, 't', static_cast<std::uint64_t>(size), 0, real_ftruncate, size);
}
int ftruncate64(int fd, off64_t size) noexcept { return ftruncate(fd, size); }
int truncate(const char* path, off_t size) noexcept {
  REAL(truncate);
  if (!under_folder(AT_FDCWD, path).empty()) refuse("truncate");
  return real_truncate(path, size);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  REAL(fallocate);
  if (!handle_of(fd)) return real_fallocate(fd, mode, offset, bytes);
  if (mode == FALLOC_FL_KEEP_SIZE)  // room that no reader sees, as RocksDB takes it for a repair
    return real_fallocate(fd, mode, offset, bytes);
  if (mode != (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)) refuse("fallocate");
  std::lock_guard lock(g_mu);
  const auto at = static_cast<std::uint64_t>(offset), length = static_cast<std::uint64_t>(bytes);
  if (fails('p', handle_of(fd))) return -1;
  count([&] { note('p', handle_of(fd), at, length, {}, {}, nullptr, kCut); });
  const int result = real_fallocate(fd, mode, offset, bytes);
  if (result == 0) note('p', handle_of(fd), at, length);
  return result;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  return fallocate(fd, mode, offset, bytes);
}
int posix_fallocate(int fd, off_t offset, off_t bytes) {
  REAL(posix_fallocate);
  if (handle_of(fd)) refuse("posix_fallocate");
  return real_posix_fallocate(fd, offset, bytes);
}

int fsync(int fd) {
  REAL(fsync);
  return handle_of(fd) ? noted_sync(fd, 's') : real_fsync(fd);
}
int fdatasync(int fd) {
  REAL(fdatasync);
  return handle_of(fd) ? noted_sync(fd, 'd') : real_fdatasync(fd);
}
int syncfs(int fd) noexcept {
  REAL(syncfs);
  if (handle_of(fd)) refuse("syncfs");
  return real_syncfs(fd);
}

int rename(const char* from, const char* to) noexcept {
  REAL(rename);
  return noted_change('r', under_folder(AT_FDCWD, from), under_folder(AT_FDCWD, to),
                      [&] { return real_rename(from, to); });
}
int renameat(int dir, const char* from, int to_dir, const char* to) noexcept {
  REAL(renameat);
  return noted_change('r', under_folder(dir, from), under_folder(to_dir, to),
                      [&] { return real_renameat(dir, from, to_dir, to); });
}
int unlink(const char* path) noexcept {
  REAL(unlink);
  return noted_change('u', under_folder(AT_FDCWD, path), {}, [&] { return real_unlink(path); });
}
int unlinkat(int dir, const char* path, int flags) noexcept {
  REAL(unlinkat);
  return noted_change('u', under_folder(dir, path), {},
                      [&] { return real_unlinkat(dir, path, flags); });
}
int rmdir(const char* path) noexcept {
  REAL(rmdir);
  return noted_change('u', under_folder(AT_FDCWD, path), {}, [&] { return real_rmdir(path); });
}
int remove(const char* path) noexcept {
  REAL(remove);
  return noted_change('u', under_folder(AT_FDCWD, path), {}, [&] { return real_remove(path); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  REAL(mkdir);
  return noted_change('m', under_folder(AT_FDCWD, path), {},
                      [&] { return real_mkdir(path, mode); });
}
int link(const char* from, const char* to) noexcept {
  REAL(link);
  return noted_change('l', under_folder(AT_FDCWD, from), under_folder(AT_FDCWD, to),
                      [&] { return real_link(from, to); });
}
int symlink(const char* from, const char* to) noexcept {
  REAL(symlink);
  if (!under_folder(AT_FDCWD, to).empty()) refuse("symlink");
  return real_symlink(from, to);
}

void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  REAL(mmap);
  if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && handle_of(fd))
    refuse("a writable mapping");
  return real_mmap(at, bytes, protection, flags, fd, offset);
}
}
