#include "cachestore/disk/store_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/disk/folder/mend_folder.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/folder/record_files.h"
#include "cachestore/disk/folder/replacement.h"
#include "cachestore/disk/folder/restoring.h"
#include "cachestore/disk/folder/store_marker.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/hex_checksum.h"

namespace quire {
namespace {

/// A file beside a record that came from a backup.
const std::string kRestoredName = "/RESTORED";

std::string reason(int error) {
  return std::strerror(error);
}  // NOLINT: only used on the opening thread

/// Returns whether a folder holds only what a file system creates itself. Errors: kIo.
Result<bool> is_empty_folder(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(path));
  return std::ranges::all_of(files, [](const std::filesystem::path& file) {
    const std::string name = file.filename().string();
    return name == "lost+found" || name == "LOCK" || name == "STORE.tmp" ||
           "/" + name == kRestoringName;
  });
}

Status make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return {};
  return disk_error("create the store folder", path, errno);
}

std::optional<std::string> read_file(const std::string& path) {
  FileHandle f(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (f.fd() < 0) return std::nullopt;
  std::string out;
  char chunk[65536];
  ssize_t n;
  while ((n = ::read(f.fd(), chunk, sizeof chunk)) > 0) out.append(chunk, to_size(n));
  if (n < 0) return std::nullopt;
  return out;
}

/// Returns whether a seal covers a database file: those whose records are not read back through
/// checksummed tables.
bool is_sealed(const std::string& name) {
  return name.starts_with("MANIFEST-") || name == "CURRENT" || name.ends_with(".log");
}

/// Makes durable what a seal covers. Returns whether all of it is.
bool sync_sealed(const std::string& db) {
  const auto files = files_in(db);
  if (!files.ok()) return false;
  for (const auto& file : *files) {
    if (!is_sealed(file.filename().string())) continue;
    FileHandle f(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (f.fd() < 0 || ::fsync(f.fd()) != 0) return false;
  }
  return sync_folder(db).ok();
}

/// Returns what is to be known of a folder in which a store may be opened for writing. Errors:
/// those of look_at_folder(), kInvalidArgument (it holds something else).
Result<FolderLook> look_before_writing(const std::string& root) {
  QUIRE_ASSIGN_OR_RETURN(const FolderLook look, look_at_folder(root, kStoreLayoutVersion));
  if (look.is_store) return look;
  QUIRE_ASSIGN_OR_RETURN(const bool is_empty, is_empty_folder(root));
  if (is_empty) return look;
  // Another process may have begun a store after the first look.
  QUIRE_ASSIGN_OR_RETURN(const FolderLook again, look_at_folder(root, kStoreLayoutVersion));
  if (again.is_store) return again;
  return Status::invalid(
      "disk.path",
      "'" + root + "' is not empty and holds no store: choose an empty or a new folder");
}

/// Returns name, size and hash, one line each, of every database file that a seal covers. Errors:
/// kIo.
Result<std::string> seal_text(const std::string& db) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(db));
  std::vector<std::string> lines;
  for (const auto& file : files) {
    const std::string name = file.filename().string();
    if (!is_sealed(name)) continue;
    const auto bytes = read_file(file.string());
    lines.push_back(name + " " +
                    (bytes ? std::to_string(bytes->size()) + " " + hex_checksum(*bytes)
                           : std::string("unreadable")) +
                    "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const auto& line : lines) text += line;
  return text;
}

Result<int> lock_folder(const std::string& root) {
  const std::string path = root + "/LOCK";
  QUIRE_RETURN_IF_ERROR(only_a_file(path));
  FileHandle f(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (f.fd() < 0) return disk_error("write to the store folder", root, errno);
  if (::flock(f.fd(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return disk_error("lock", path, errno);
    char pid[32] = {};
    const ssize_t n = ::pread(f.fd(), pid, sizeof pid - 1, 0);
    const std::string who = n > 0 ? "process " + std::string(pid, to_size(n))
                                  : std::string("another process");
    return Status(
        Code::kFailedPrecondition,
        "the store in '" + root + "' is in use by " + who + ": stop it, or choose another folder",
        "disk.path");
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(f.fd(), 0) != 0 ||
      ::pwrite(f.fd(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return disk_error("write to the store folder", root, errno);
  }
  return f.release();
}

Status check_folder(const std::string& root, bool read_only, FolderUse use) {
  struct stat st;
  if (::stat(root.c_str(), &st) != 0) {
    if (errno != ENOENT) return disk_error("open the store folder", root, errno);
    if (read_only || use == FolderUse::kLook)
      return Status(Code::kNotFound, "there is no store in '" + root + "'", "disk.path");
    std::filesystem::path parent = std::filesystem::path(root).parent_path();
    if (parent.empty()) parent = ".";
    if (::stat(parent.c_str(), &st) != 0 && errno == ENOENT) {
      return Status(
          Code::kNotFound,
          "the folder '" + parent.string() + "' does not exist: create it, or change disk.path",
          "disk.path");
    }
    QUIRE_RETURN_IF_ERROR(make_folder(root));
    if (::stat(root.c_str(), &st) != 0) return disk_error("open the store folder", root, errno);
  }
  if (!S_ISDIR(st.st_mode))
    return Status::invalid("disk.path", "'" + root + "' is a file; it must be a folder");
  if (::faccessat(AT_FDCWD, root.c_str(), R_OK | X_OK | (read_only ? 0 : W_OK), AT_EACCESS) != 0) {
    const char* verb = read_only ? "read" : "write to";
    return Status(Code::kIo,
                  std::string("cannot ") + verb + " the store folder '" + root + "': " +
                      reason(errno) + "; give this user the right, or choose another folder",
                  "disk.path");
  }
  return {};
}

}  // namespace

std::uint64_t allocated_bytes(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0 ? static_cast<std::uint64_t>(st.st_blocks) * 512 : 0;
}

std::uint64_t directory_bytes(const std::string& path) {
  std::uint64_t total = allocated_bytes(path);
  DIR* dir = ::opendir(path.c_str());
  if (!dir) return total;
  while (const dirent* e = ::readdir(dir)) {
    struct stat st;
    if (e->d_name[0] == '.' && (e->d_name[1] == 0 || (e->d_name[1] == '.' && e->d_name[2] == 0)))
      continue;
    if (::fstatat(::dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode)) {
      total += static_cast<std::uint64_t>(st.st_blocks) * 512;
    }
  }
  ::closedir(dir);
  return total;
}

Status StoreFolder::end_restore() const {
  QUIRE_RETURN_IF_ERROR(write_private_file(root_ + kRestoredName, ""));
  return quire::end_restore(root_);
}

void StoreFolder::abandon_restore() const { quire::abandon_restore(root_); }

Result<StoreFolder> StoreFolder::open(const std::string& path, bool read_only, FolderUse use) {
  if (path.empty()) return Status::invalid("disk.path", "must name a folder");
  std::string root = path;
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  QUIRE_RETURN_IF_ERROR(check_folder(root, read_only, use));
  if (read_only) {
    if (is_restoring(root)) return half_restored(root);
    QUIRE_ASSIGN_OR_RETURN(const FolderLook look, look_at_folder(root, kStoreLayoutVersion));
    if (!look.is_store)
      return Status(Code::kNotFound, "there is no store in '" + root + "'", "disk.path");
    StoreFolder folder(std::move(root), -1);
    QUIRE_RETURN_IF_ERROR(folder.check_seal(read_only));
    return folder;
  }
  // What is refused stays as it is. The lock comes before all that is written, and before what is
  // taken for damage: another process may be writing it.
  if (use == FolderUse::kRestore)
    QUIRE_RETURN_IF_ERROR(check_restorable(root));
  else if (!is_restoring(root))
    QUIRE_RETURN_IF_ERROR(look_before_writing(root).status());
  QUIRE_ASSIGN_OR_RETURN(const int fd, lock_folder(root));
  StoreFolder folder(std::move(root), fd);
  if (use == FolderUse::kRestore)
    QUIRE_RETURN_IF_ERROR(begin_restore(folder.root()));
  else if (is_restoring(folder.root()))
    return half_restored(folder.root());
  QUIRE_ASSIGN_OR_RETURN(const FolderLook look, look_before_writing(folder.root()));
  if (use == FolderUse::kLook) {
    if (!folder.is_replacing()) return folder;
    return Status(Code::kFailedPrecondition,
                  "a repair of the store in '" + folder.root() +
                      "' was interrupted: a start ends it, and so does a repair with --apply",
                  "disk.path");
  }
  QUIRE_RETURN_IF_ERROR(mend_folder(folder.root()));
  if (!look.is_store) {
    QUIRE_RETURN_IF_ERROR(write_marker(folder.root(), kStoreLayoutVersion));
  } else if (look.is_unnamed) {
    log_warning("the marker of the store is damaged or lost, and written again",
                {{"path", folder.root() + "/STORE"}, {"layout", std::to_string(look.layout)}});
    QUIRE_RETURN_IF_ERROR(write_marker(folder.root(), look.layout));
  }
  if (use == FolderUse::kRepair) return folder;
  QUIRE_RETURN_IF_ERROR(folder.check_seal(read_only));
  if (look.is_store && look.layout < kStoreLayoutVersion) {
    // From here on an older program refuses the folder instead of missing what was moved.
    QUIRE_RETURN_IF_ERROR(write_marker(folder.root(), kStoreLayoutVersion));
    log_info("the store has an older layout: its segments are moved while the service runs",
             {{"path", folder.root()}, {"layout", std::to_string(look.layout)}});
    std::error_code ignored;  // files that layout 1 was writing
    std::filesystem::remove_all(folder.root() + "/staging", ignored);
  }
  for (const auto& sub : {folder.db(), folder.extents()}) {
    QUIRE_RETURN_IF_ERROR(make_folder(sub));
    (void)::chmod(sub.c_str(), 0700);  // folders of older versions
  }
  // The names must be durable before anything in these folders is acknowledged. They may be those
  // of a start that a loss of power ended, so they are synchronized even if nothing was made now.
  QUIRE_RETURN_IF_ERROR(sync_folder(folder.root()));
  std::error_code ec;
  const auto real = std::filesystem::canonical(folder.root(), ec);
  // This user may lack the right to read the folder above.
  if (!ec) (void)sync_folder(real.parent_path().string());
  return folder;
}

StoreFolder::StoreFolder(StoreFolder&& other) noexcept
    : root_(std::move(other.root_)), lock_fd_(std::exchange(other.lock_fd_, -1)) {}

StoreFolder::~StoreFolder() {
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

Status StoreFolder::check_seal(bool read_only) const {
  const std::string path = root_ + "/SEAL";
  const auto sealed = read_file(path);
  if (!sealed) return {};
  // A seal that does not match its own digest is damaged itself and says nothing about the rest.
  const auto end = sealed->rfind("end ");
  const bool whole = end != std::string::npos &&
                     sealed->substr(end) == "end " + hex_checksum(sealed->substr(0, end)) + "\n";
  QUIRE_ASSIGN_OR_RETURN(const std::string now, seal_text(db()));
  if (whole && sealed->substr(0, end) != now && (!read_only || ::access(path.c_str(), F_OK) == 0)) {
    return Status(Code::kCorruption,
                  "the catalog in '" + db() +
                      "' is damaged, or of another time than SEAL beside it: its manifest is not "
                      "what was written when the store was closed",
                  "disk.path");
  }
  if (!read_only && ::unlink(path.c_str()) != 0)
    return disk_error("write to the store folder", root_, errno);
  return read_only ? Status() : sync_folder(root_);
}

void StoreFolder::seal() const {
  // A seal may not outlive what it seals: a power failure right after a stop would then look like
  // damage. Unsynchronized are the end of the log, and names of files that were deleted.
  if (!sync_sealed(db())) return;
  const auto lines = seal_text(db());
  if (!lines.ok()) return;
  std::string text = *lines;
  text += "end " + hex_checksum(text) + "\n";
  const std::string path = root_ + "/SEAL", tmp = path + ".tmp";
  {
    FileHandle f(::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (f.fd() < 0 ||
        ::write(f.fd(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
        ::fsync(f.fd()) != 0) {
      ::unlink(tmp.c_str());  // a missing seal loses nothing
      return;
    }
  }
  if (::rename(tmp.c_str(), path.c_str()) != 0) ::unlink(tmp.c_str());
}

Result<std::string> StoreFolder::make_aside(const std::string& name) const {
  for (int i = 0;; ++i) {
    const std::string path = root_ + "/" + name + (i == 0 ? "" : "-" + std::to_string(i));
    if (::mkdir(path.c_str(), 0700) == 0) return path;
    if (errno != EEXIST || i == 1000) return disk_error("create the folder", path, errno);
  }
}

std::string StoreFolder::work() const { return root_ + std::string(kWorkName); }

Result<StoreFolder> StoreFolder::make_mended_copy(std::vector<std::string>* found) const {
  StoreFolder copy(work() + "/look", -1);
  std::error_code ec;
  std::filesystem::remove_all(work(), ec);
  QUIRE_RETURN_IF_ERROR(make_folder(work()));
  QUIRE_RETURN_IF_ERROR(make_folder(copy.root()));
  QUIRE_ASSIGN_OR_RETURN(const FolderLook look, look_at_folder(root_, kStoreLayoutVersion));
  if (look.is_unnamed) found->push_back("the marker STORE is damaged or lost");
  QUIRE_RETURN_IF_ERROR(copy_record_files(root_, copy.root(), found));
  QUIRE_RETURN_IF_ERROR(mend_folder(copy.root(), found));
  return copy;
}

Status StoreFolder::make_work_folder(const std::string& path) const { return make_folder(path); }

Status StoreFolder::replace_record(const std::string& kept, bool keep_kv) const {
  return quire::replace_record(root_, {std::filesystem::path(kept).filename().string(), keep_kv});
}

bool StoreFolder::is_replacing() const { return quire::is_replacing(root_); }

Result<std::string> StoreFolder::set_record_aside(const std::string& name) const {
  QUIRE_ASSIGN_OR_RETURN(std::string kept, make_aside(name));
  // The record first: what lies beside it tells where its end is lost.
  for (const char* part : {"/db", "/SEAL", "/LEDGER", "/LOST_WRITES", "/EDITS"}) {
    if (::rename((root_ + part).c_str(), (kept + part).c_str()) != 0 && errno != ENOENT)
      return disk_error("move", root_ + part, errno);
  }
  QUIRE_RETURN_IF_ERROR(make_folder(db()));
  QUIRE_RETURN_IF_ERROR(sync_folder(root_));
  return kept;
}

bool StoreFolder::was_restored() const {
  return ::access((root_ + kRestoredName).c_str(), F_OK) == 0;
}

void StoreFolder::forget_restored() const { ::unlink((root_ + kRestoredName).c_str()); }

bool StoreFolder::wants_copy() const {
  return ::access((root_ + std::string(kWantsCopyName)).c_str(), F_OK) == 0;
}

Status StoreFolder::say_wants_copy() const {
  QUIRE_RETURN_IF_ERROR(write_private_file(root_ + std::string(kWantsCopyName), ""));
  return sync_folder(root_);
}

void StoreFolder::forget_wants_copy() const {
  ::unlink((root_ + std::string(kWantsCopyName)).c_str());
}

std::uint64_t StoreFolder::catalog_bytes() const {
  return directory_bytes(root_) + directory_bytes(db()) + allocated_bytes(extents()) +
         allocated_bytes(values()) + allocated_bytes(sketches());
}

void StoreFolder::remove_layout1() const {
  ::rmdir(values().c_str());
  ::rmdir(sketches().c_str());
}

std::uint64_t StoreFolder::disk_bytes() const {
  struct statvfs st;
  if (::statvfs(root_.c_str(), &st) != 0) return 0;
  return static_cast<std::uint64_t>(st.f_blocks) * st.f_frsize;
}

std::uint64_t StoreFolder::free_bytes() const {
  struct statvfs st;
  if (::statvfs(root_.c_str(), &st) != 0) return UINT64_MAX;
  return static_cast<std::uint64_t>(st.f_bavail) * st.f_frsize;
}

bool StoreFolder::supports_direct_io() const {
  const std::string path = root_ + "/STORE";
  FileHandle f(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
  return f.fd() >= 0;
}

}  // namespace quire
