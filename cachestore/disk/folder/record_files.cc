#include "cachestore/disk/folder/record_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/log/folder_files.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

Status copy_one(const fs::path& file, const fs::path& to, std::vector<std::string>* found) {
  std::error_code ec;
  if (!fs::is_regular_file(file, ec)) return {};
  if (file.extension() == ".sst" || file.extension() == ".log") {
    fs::create_hard_link(file, to, ec);
    if (!ec) return {};
  }
  fs::copy_file(file, to, ec);
  if (!ec) return {};
  if (ec.value() == ENOSPC || ec.value() == EDQUOT)
    return disk_error("write", to.string(), ec.value());
  found->push_back(file.filename().string() + " cannot be read: " + ec.message());
  fs::remove(to, ec);
  return {};
}

}  // namespace

Status copy_record_files(const std::string& root, const std::string& to,
                         std::vector<std::string>* found) {
  const std::string db = to + "/db";
  if (::mkdir(db.c_str(), 0700) != 0) return disk_error("create the folder", db, errno);
  for (const char* name : {"/SEAL", "/LEDGER", "/EDITS"})
    QUIRE_RETURN_IF_ERROR(copy_one(root + name, to + name, found));
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(root + "/db"));
  for (const fs::path& file : files)
    QUIRE_RETURN_IF_ERROR(copy_one(file, fs::path(db) / file.filename(), found));
  return {};
}

}  // namespace quire
