/// Writes files of a store's folder, which only its user can read.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"

namespace quire {

/// Closes a file when it dies. Threads: one at a time.
class FileHandle {
 public:
  /// Takes over what ::open() returned, also where that failed.
  explicit FileHandle(int fd) : fd_(fd) {}
  ~FileHandle() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  int fd() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

/// Returns what a call of the system says by `error`, an errno: "cannot WHAT 'PATH': ...". It is
/// kResourceExhausted where the disk is full, else kIo.
Status disk_error(const std::string& what, const std::string& path, int error);

/// Writes a file that only this user can read, synchronized. Errors: kIo, kResourceExhausted.
Status write_private_file(const std::string& path, std::string_view text);
/// Cuts a file to its first bytes, synchronized. A crash leaves all of it or these. Errors: kIo.
Status shorten_file(const std::string& path, std::uint64_t bytes);
/// Makes names in a folder durable. Errors: kIo, kResourceExhausted.
Status sync_folder(const std::string& path);

/// Renames what lies there to a name with `.damaged` behind it, and says so in the log. Errors:
/// kIo.
Status set_aside(const std::string& path);
/// Sets aside what lies in the place of a file and is none. Errors: kIo.
Status only_a_file(const std::string& path);

}  // namespace quire
