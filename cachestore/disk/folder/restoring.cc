#include "cachestore/disk/folder/restoring.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/folder_files.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// What a restore makes.
constexpr std::string_view kMade[] = {"db", "extents", "STORE", "STORE.tmp", "RESTORED"};
/// What may lie in a folder that counts as empty: it is the file system's, or an earlier lock.
constexpr std::string_view kNothing[] = {"lost+found", "LOCK", "STORE.tmp"};

std::string note_of(const std::string& root) { return root + std::string(kRestoringName); }

template <class Names>
bool is_one_of(const Names& names, const std::string& name) {
  return std::ranges::find(names, name) != std::end(names);
}

Status remove_made(const std::string& root) {
  for (const std::string_view name : kMade) {
    const fs::path path = fs::path(root) / name;
    std::error_code ec;
    fs::remove_all(path, ec);
    if (ec) return disk_error("remove", path.string(), ec.value());
  }
  return sync_folder(root);
}

Status sync_files(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(folder));
  for (const fs::path& file : files) {
    const FileHandle f(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
    if (f.fd() < 0 || ::fsync(f.fd()) != 0) return disk_error("synchronize", file.string(), errno);
  }
  return sync_folder(folder);
}

}  // namespace

bool is_restoring(const std::string& root) {
  struct stat st;
  return ::lstat(note_of(root).c_str(), &st) == 0;
}

Status half_restored(const std::string& root) {
  return Status(Code::kFailedPrecondition,
                "a restore of a backup to '" + root +
                    "' has not ended: run 'quire store restore' with this folder once more, which "
                    "begins anew",
                "disk.path");
}

Status check_restorable(const std::string& root) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(root));
  const bool begun = is_restoring(root);
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    if (is_one_of(kNothing, name)) continue;
    if (begun && ("/" + name == kRestoringName || is_one_of(kMade, name))) continue;
    return Status(Code::kFailedPrecondition,
                  begun ? "'" + file.string() +
                              "' lies beside what an interrupted restore left, which would be "
                              "deleted: move it away"
                        : "'" + root + "' is not empty: name a new folder, or move it away",
                  "disk.path");
  }
  return {};
}

Status begin_restore(const std::string& root) {
  QUIRE_RETURN_IF_ERROR(check_restorable(root));
  // On stable storage before anything that it tells of.
  QUIRE_RETURN_IF_ERROR(write_private_file(note_of(root), ""));
  QUIRE_RETURN_IF_ERROR(sync_folder(root));
  return remove_made(root);
}

Status end_restore(const std::string& root) {
  QUIRE_RETURN_IF_ERROR(sync_files(root + "/db"));
  QUIRE_RETURN_IF_ERROR(sync_folder(root));
  if (::unlink(note_of(root).c_str()) != 0) return disk_error("remove", note_of(root), errno);
  // The store is whole. Should the note be back, it is restored once more: an open synchronizes the
  // folder before anything is acknowledged.
  if (const Status s = sync_folder(root); !s.ok())
    log_warning("the end of a restore may not be on stable storage",
                {{"path", root}, {"reason", s.to_string()}});
  return {};
}

void abandon_restore(const std::string& root) {
  if (const Status s = remove_made(root); !s.ok()) {
    log_warning("what was restored cannot be removed: the next restore does it",
                {{"path", root}, {"reason", s.to_string()}});
    return;
  }
  ::unlink(note_of(root).c_str());
  ::unlink((root + "/LOCK").c_str());
}

}  // namespace quire
