#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/json/object.hpp>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Paths come from callers; more of one than this says nothing more.
constexpr std::size_t kMaxPathBytes = 1024;

std::string reason_of(int error) { return std::generic_category().message(error); }

Status cannot_open(const std::string& path, int error) {
  return Status::invalid("log.audit", "the audit log " + path +
                                          " cannot be opened: " + reason_of(error) +
                                          "; name a file that the service may write, or leave "
                                          "log.audit empty");
}

/// Returns whether the file's last byte is no line end, or cannot be read.
bool ends_within_line(const std::string& path, off_t size) {
  if (size == 0) return false;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char last = 0;
  const bool read = ::pread(fd, &last, 1, size - 1) == 1;
  ::close(fd);
  return !read || last != '\n';
}

json::value text_or_null(const std::string& text) {
  return text.empty() ? json::value(nullptr) : json::value(text);
}

std::string lost_json(std::uint64_t lines, std::int64_t unix_ms) {
  return to_text(json::object{{"time", rfc3339(unix_ms)}, {"lines_lost", lines}});
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

std::string audit_json(const AuditEntry& e) {
  return to_text(json::object{{"time", rfc3339(e.unix_ms)},
                              {"request_id", e.request_id},
                              {"key", text_or_null(e.key)},
                              {"namespace", text_or_null(e.ns)},
                              {"peer", text_or_null(e.peer)},
                              {"method", e.method},
                              {"route", text_or_null(e.route)},
                              {"path", e.path.substr(0, kMaxPathBytes)},
                              {"status", e.status},
                              {"error", text_or_null(e.error_code)}});
}

Result<AuditLog::File> AuditLog::open_file(const std::string& path) {
  // Without O_NONBLOCK a pipe that nobody reads would hold up the start, and later the writer.
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return cannot_open(path, errno);
  struct stat found {};
  if (::fstat(fd, &found) != 0 || (S_ISREG(found.st_mode) && ::fchmod(fd, 0600) != 0)) {
    const int error = errno;
    ::close(fd);
    return cannot_open(path, error);
  }
  return File(fd, S_ISREG(found.st_mode) && ends_within_line(path, found.st_size));
}

AuditLog::File::File(File&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), line_is_open_(other.line_is_open_) {}

AuditLog::File& AuditLog::File::operator=(File&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(line_is_open_, other.line_is_open_);
  return *this;
}

AuditLog::File::~File() {
  if (fd_ >= 0) ::close(fd_);
}

Status AuditLog::check(const std::string& path) {
  std::error_code ec;
  if (std::filesystem::is_directory(path, ec)) return cannot_open(path, EISDIR);
  if (::access(path.c_str(), W_OK) == 0) return {};
  if (errno != ENOENT) return cannot_open(path, errno);
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0) return {};
  return cannot_open(path, errno);
}

Result<std::unique_ptr<AuditLog>> AuditLog::open(std::string path) {
  QUIRE_ASSIGN_OR_RETURN(File file, open_file(path));
  return std::unique_ptr<AuditLog>(new AuditLog(std::move(path), std::move(file)));
}

AuditLog::AuditLog(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {
  thread_ = std::thread([this] { run(); });
}

AuditLog::~AuditLog() {
  {
    std::lock_guard lock(mu_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AuditLog::add(const AuditEntry& entry) {
  std::string line = audit_json(entry);
  {
    std::lock_guard lock(mu_);
    if (waiting_.size() < kMaxWaiting) {
      waiting_.push_back(std::move(line));
      line.clear();
    }
  }
  if (!line.empty()) return lose(1, "the disk is too slow: more lines wait than may");
  changed_.notify_one();
}

void AuditLog::use(File file) {
  std::lock_guard lock(file_mu_);
  file_ = std::move(file);
}

std::uint64_t AuditLog::lost() const {
  std::lock_guard lock(mu_);
  return lost_;
}

void AuditLog::lose(std::uint64_t lines, const std::string& reason) {
  bool first = false;
  {
    std::lock_guard lock(mu_);
    first = unsaid_ == 0;
    lost_ += lines;
    unsaid_ += lines;
  }
  if (first)
    log_error("lines of the audit log are lost until it can be written again",
              {{"file", path_}, {"reason", reason}});
}

/// Appends a line. On a full disk a part of it may be written, which the next line then ends.
bool AuditLog::append(const std::string& line) {
  const std::string text = (file_.line_is_open_ ? "\n" : "") + line + "\n";
  ssize_t written = 0;
  do {
    written = ::write(file_.fd_, text.data(), text.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(text.size())) {
    file_.line_is_open_ = false;
    return true;
  }
  if (written > 0) file_.line_is_open_ = true;
  if (written >= 0) errno = ENOSPC;
  return false;
}

void AuditLog::write_line(const std::string& line) {
  std::lock_guard file(file_mu_);
  std::uint64_t unsaid = 0;
  {
    std::lock_guard lock(mu_);
    unsaid = unsaid_;
  }
  bool ok = unsaid == 0 || append(lost_json(unsaid, now_ms()));
  if (ok && unsaid > 0) {
    std::lock_guard lock(mu_);
    unsaid_ -= unsaid;
  }
  ok = ok && append(line);
  if (!ok) return lose(1, reason_of(errno));
  if (unsaid > 0)
    log_warning("the audit log is written again",
                {{"file", path_}, {"lines_lost", std::to_string(unsaid)}});
}

void AuditLog::run() {
  std::unique_lock lock(mu_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    write_line(line);
    lock.lock();
  }
}

}  // namespace quire
