#include "cachestore/disk/folder/private_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/index.h"
#include "base/log.h"

namespace quire {

Status disk_error(const std::string& what, const std::string& path, int error) {
  const std::string message = "cannot " + what + " '" + path + "': " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT)
    return Status(Code::kResourceExhausted, message + "; free some disk space", "disk.path");
  return Status(Code::kIo, message, "disk.path");
}

Status write_private_file(const std::string& path, std::string_view text) {
  const FileHandle f(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (f.fd() < 0) return disk_error("write", path, errno);
  while (!text.empty()) {
    const ssize_t n = ::write(f.fd(), text.data(), text.size());
    if (n < 0) return disk_error("write", path, errno);
    text.remove_prefix(to_size(n));
  }
  return ::fsync(f.fd()) == 0 ? Status() : disk_error("write", path, errno);
}

Status shorten_file(const std::string& path, std::uint64_t bytes) {
  const FileHandle f(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (f.fd() < 0 || ::ftruncate(f.fd(), static_cast<off_t>(bytes)) != 0 || ::fsync(f.fd()) != 0)
    return disk_error("cut", path, errno);
  return {};
}

Status sync_folder(const std::string& path) {
  const FileHandle dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.fd() < 0 || ::fsync(dir.fd()) != 0)
    return disk_error("sync the store folder", path, errno);
  return {};
}

Status set_aside(const std::string& path) {
  std::error_code unknown;
  const bool is_folder = std::filesystem::symlink_status(path, unknown).type() ==
                         std::filesystem::file_type::directory;
  for (int i = 0; i < 1000; ++i) {
    const std::string to = path + ".damaged" + (i == 0 ? "" : "-" + std::to_string(i));
    std::error_code ec;
    if (std::filesystem::exists(to, ec)) continue;
    // With a slash at its end only a folder is moved: a file may have taken its place by now, the
    // lock of another process.
    std::filesystem::rename(is_folder ? path + "/" : path, to, ec);
    if (is_folder && ec == std::errc::not_a_directory) return {};
    if (ec) return Status(Code::kIo, "cannot move '" + path + "': " + ec.message(), "disk.path");
    log_warning("set aside what lay in the place of a file of the store",
                {{"path", path}, {"now", to}});
    return {};
  }
  return Status(Code::kIo, "cannot move '" + path + "': too many were moved", "disk.path");
}

Status only_a_file(const std::string& path) {
  std::error_code ec;
  const auto type = std::filesystem::symlink_status(path, ec).type();
  if (ec || type == std::filesystem::file_type::not_found ||
      type == std::filesystem::file_type::regular)
    return {};
  if (type == std::filesystem::file_type::symlink && std::filesystem::is_regular_file(path, ec))
    return {};
  return set_aside(path);
}

}  // namespace quire
