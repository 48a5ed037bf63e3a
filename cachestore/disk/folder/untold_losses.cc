#include "cachestore/disk/folder/untold_losses.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/hex_checksum.h"
#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

std::string folder_of(const std::string& path) {
  return std::filesystem::path(path).parent_path().string();
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
  return line + hex_checksum(line) + "\n";
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
  const std::string tmp = path_ + ".tmp";
  QUIRE_RETURN_IF_ERROR(write_private_file(tmp, untold_.text()));
  if (std::rename(tmp.c_str(), path_.c_str()) != 0) return disk_error("write", path_, errno);
  return sync_folder(folder_of(path_));
}

/// What cannot be removed is told once more.
void UntoldLosses::remove() {
  if (untold_.lost.count == 0) return;
  Status gone;
  if (::unlink(path_.c_str()) != 0 && errno != ENOENT) gone = disk_error("remove", path_, errno);
  if (gone.ok()) gone = sync_folder(folder_of(path_));
  if (!gone.ok()) {
    log_warning("the note of lost writes cannot be removed: the next start tells them once more",
                {{"reason", gone.to_string()}});
    return;
  }
  untold_.lost = {};
}

}  // namespace quire
