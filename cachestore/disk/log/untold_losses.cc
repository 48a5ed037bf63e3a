#include "cachestore/disk/log/untold_losses.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

Status failed(const std::string& path) {
  const Code code = errno == ENOSPC || errno == EDQUOT ? Code::kResourceExhausted : Code::kIo;
  return Status(code, "cannot write '" + path + "': " + std::strerror(errno), "disk.path");
}

/// Makes durable which names a file's folder has.
bool sync_folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool synced = ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  errno = error;
  return synced;
}

}  // namespace

std::string UntoldLosses::Note::text() const {
  std::string line;
  const auto add = [&line](auto number) { line += std::to_string(number) + " "; };
  add(lost.count);
  add(lost.torn);
  add(lost.at_least ? 1 : 0);
  add(lost.note_damaged ? 1 : 0);
  add(lost.first_ms);
  add(lost.last_ms);
  add(compared);
  char checksum[18];
  std::snprintf(checksum, sizeof checksum, "%016llx\n",
                static_cast<unsigned long long>(XXH3_64bits(line.data(), line.size())));
  return line + checksum;
}

std::optional<UntoldLosses::Note> UntoldLosses::Note::parse(std::string_view text) {
  Note note;
  int at_least = 0, damaged = 0;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto take = [&at, end](auto& number) {
    const auto [next, error] = std::from_chars(at, end, number);
    at = next == end ? end : next + 1;
    return error == std::errc();
  };
  const bool all = take(note.lost.count) && take(note.lost.torn) && take(at_least) &&
                   take(damaged) && take(note.lost.first_ms) && take(note.lost.last_ms) &&
                   take(note.compared);
  note.lost.at_least = at_least == 1;
  note.lost.note_damaged = damaged == 1;
  // What is between the numbers, and the checksum, are compared with what it should be.
  if (!all || note.lost.count == 0 || text != note.text()) return std::nullopt;
  return note;
}

void UntoldLosses::open(std::string path) {
  path_ = std::move(path);
  std::error_code ec;
  if (std::filesystem::symlink_status(path_, ec).type() == std::filesystem::file_type::not_found)
    return;
  const auto note = Note::parse(file_bytes(path_));
  if (!note)
    log_error("the note of lost writes is damaged: nobody knows how many there are and of when",
              {{"path", path_}});
  const std::lock_guard lock(mu_);
  untold_ = note.value_or(Note{{.count = 1, .at_least = true, .note_damaged = true}});
  shown_ = untold_.lost;
}

LostWrites UntoldLosses::shown() const {
  const std::lock_guard lock(mu_);
  return shown_;
}

std::uint64_t UntoldLosses::compared() const {
  const std::lock_guard lock(mu_);
  return untold_.compared;
}

Status UntoldLosses::add(const LostWrites& lost, std::uint64_t compared) {
  const std::lock_guard lock(mu_);
  shown_.add(lost);
  untold_.lost.add(lost);
  untold_.compared = std::max(untold_.compared, compared);
  return write();
}

void UntoldLosses::told() {
  const std::lock_guard lock(mu_);
  remove();
}

void UntoldLosses::mended() {
  const std::lock_guard lock(mu_);
  shown_ = {};
  remove();
}

Status UntoldLosses::write() const {
  const std::string line = untold_.text(), tmp = path_ + ".tmp";
  const int fd = ::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return failed(tmp);
  const bool written = ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                       ::fsync(fd) == 0;
  const Status status = written ? Status() : failed(tmp);
  ::close(fd);
  QUIRE_RETURN_IF_ERROR(status);
  if (::rename(tmp.c_str(), path_.c_str()) != 0 || !sync_folder_of(path_)) return failed(path_);
  return {};
}

/// What cannot be removed is told once more.
void UntoldLosses::remove() {
  if (untold_.lost.count == 0) return;
  if ((::unlink(path_.c_str()) != 0 && errno != ENOENT) || !sync_folder_of(path_)) {
    log_warning("the note of lost writes cannot be removed: the next start tells them once more",
                {{"path", path_}, {"reason", std::strerror(errno)}});
    return;
  }
  untold_.lost = {};
}

}  // namespace quire
