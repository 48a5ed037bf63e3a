#include "cachestore/disk/folder/replacement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <vector>

#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/hex_checksum.h"
#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// What is known of the end of a record, and KV of layout 1, which has its list in the record.
constexpr const char* kBeside[] = {"/SEAL", "/LEDGER", "/EDITS", "/blocks", "/sketches"};
constexpr const char* kKv = "/extents";
/// Where the old record goes if nobody said so.
constexpr const char* kKeptUnnamed = "damaged-interrupted";

std::string file_of(const std::string& root) { return root + std::string(kNewRecordName); }

/// Errors: kIo.
Result<bool> is_there(const std::string& path) {
  struct stat st;
  if (::lstat(path.c_str(), &st) == 0) return true;
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return disk_error("look at", path, errno);
}

/// Moves what is there to a name that is free.
Status move(const std::string& from, const std::string& to) {
  std::string name = to;
  for (int i = 1;; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const bool taken, is_there(name));
    if (!taken) break;
    name = to + "-" + std::to_string(i);
  }
  if (::rename(from.c_str(), name.c_str()) == 0 || errno == ENOENT) return {};
  return disk_error("move", from, errno);
}

/// Moves the old record away. It goes first: without what lies beside it, it would be opened
/// without a word where its end is lost.
Status move_old(const std::string& root, const std::string& kept, bool keep_kv) {
  if (::mkdir(kept.c_str(), 0700) != 0 && errno != EEXIST)
    return disk_error("create the folder", kept, errno);
  QUIRE_RETURN_IF_ERROR(move(root + "/db", kept + "/db"));
  for (const char* part : kBeside) QUIRE_RETURN_IF_ERROR(move(root + part, kept + part));
  if (!keep_kv) QUIRE_RETURN_IF_ERROR(move(root + kKv, kept + kKv));
  QUIRE_RETURN_IF_ERROR(sync_folder(kept));
  return sync_folder(root);
}

/// Moves the old record back, behind all that lies beside it.
Status move_back(const std::string& root, const std::string& kept) {
  std::vector<std::string> parts(std::begin(kBeside), std::end(kBeside));
  parts.insert(parts.end(), {kKv, "/db"});
  for (const std::string& part : parts) {
    QUIRE_ASSIGN_OR_RETURN(const bool taken, is_there(root + part));
    if (!taken) QUIRE_RETURN_IF_ERROR(move(kept + part, root + part));
  }
  return sync_folder(root);
}

/// Does what is left to do of a replacement that was begun.
Status go_on(const std::string& root, const Replacement& replacement) {
  const std::string db = root + "/db", fresh = root + std::string(kWorkName) + "/db",
                    kept = root + "/" + replacement.kept;
  QUIRE_ASSIGN_OR_RETURN(bool has_new, is_there(fresh));
  if (has_new) {
    QUIRE_RETURN_IF_ERROR(move_old(root, kept, replacement.keep_kv));
    QUIRE_RETURN_IF_ERROR(move(fresh, db));
    QUIRE_RETURN_IF_ERROR(sync_folder(root));
  } else {
    QUIRE_ASSIGN_OR_RETURN(const bool has_record, is_there(db));
    QUIRE_ASSIGN_OR_RETURN(const bool has_old, is_there(kept + "/db"));
    has_new = has_record && has_old;
    if (!has_record) QUIRE_RETURN_IF_ERROR(move_back(root, kept));
  }
  // The old record had lost what a copy might have.
  if (has_new) ::unlink((root + std::string(kWantsCopyName)).c_str());
  if (::unlink(file_of(root).c_str()) != 0) return disk_error("remove", file_of(root), errno);
  return sync_folder(root);
}

}  // namespace

std::string Replacement::text() const {
  const std::string said = kept + (keep_kv ? " 1 " : " 0 ");
  return said + hex_checksum(said) + "\n";
}

std::optional<Replacement> Replacement::parse(std::string_view text) {
  const auto end = text.find(' ');
  if (end == 0 || end == text.npos || text.substr(0, end).find('/') != text.npos)
    return std::nullopt;
  Replacement out{std::string(text.substr(0, end)), text.substr(end).starts_with(" 1 ")};
  return text == out.text() ? std::optional(std::move(out)) : std::nullopt;
}

bool is_replacing(const std::string& root) {
  std::error_code ec;
  return fs::is_regular_file(file_of(root), ec);
}

Status replace_record(const std::string& root, const Replacement& replacement) {
  const std::string work = root + std::string(kWorkName), tmp = file_of(root) + ".tmp";
  // Who finds the file below finds the new record, too.
  QUIRE_RETURN_IF_ERROR(sync_folder(work + "/db"));
  QUIRE_RETURN_IF_ERROR(sync_folder(work));
  QUIRE_RETURN_IF_ERROR(only_a_file(tmp));
  QUIRE_RETURN_IF_ERROR(only_a_file(file_of(root)));
  Status said = write_private_file(tmp, replacement.text());
  if (said.ok() && ::rename(tmp.c_str(), file_of(root).c_str()) != 0)
    said = disk_error("write", file_of(root), errno);
  if (!said.ok()) {
    ::unlink(tmp.c_str());
    return said;
  }
  QUIRE_RETURN_IF_ERROR(sync_folder(root));
  return go_on(root, replacement);
}

Status end_replacement(const std::string& root) {
  if (!is_replacing(root)) return {};
  const auto said = Replacement::parse(file_bytes(file_of(root)));
  // Older programs named no folder, and had moved what lies beside the record by then.
  QUIRE_RETURN_IF_ERROR(go_on(root, said.value_or(Replacement{kKeptUnnamed, true})));
  if (!said) ::rmdir((root + "/" + kKeptUnnamed).c_str());  // unless something lies in it
  std::error_code ec;
  fs::remove_all(root + std::string(kWorkName), ec);
  log_warning("ended a repair that was interrupted", {{"path", root}});
  return {};
}

}  // namespace quire
