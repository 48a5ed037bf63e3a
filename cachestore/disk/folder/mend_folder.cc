#include "cachestore/disk/folder/mend_folder.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <vector>

#include "base/log.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/folder/replacement.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/log_pieces.h"
#include "cachestore/disk/log/manifest_end.h"
#include "cachestore/disk/log/manifest_note.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// Returns the beginning of a file; none if it cannot be read.
std::optional<std::string> beginning(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  char buffer[4096];
  in.read(buffer, sizeof buffer);
  return std::string(buffer, static_cast<std::size_t>(in.gcount()));
}

/// Says what is damaged, and what is done about it, in the log; or only the former to `found`.
void say(std::vector<std::string>* found, const std::string& damage, const std::string& mended,
         std::initializer_list<LogField> fields) {
  if (found != nullptr)
    found->push_back(damage);
  else
    log_warning(damage + mended, fields);
}

std::vector<std::string> manifests(const std::vector<fs::path>& files) {
  std::vector<std::string> out;
  std::error_code ec;
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    if (name.starts_with("MANIFEST-") && fs::is_regular_file(file, ec)) out.push_back(name);
  }
  return out;
}

/// Returns whether a process ended while it made the record: RocksDB names the first manifest in
/// CURRENT before it begins a log, and what is acknowledged is in the ledger, too.
bool is_unfinished(const std::string& root, const std::vector<fs::path>& files,
                   const std::vector<std::string>& manifests) {
  std::error_code ec;
  if (manifests.size() != 1 || manifests.front() != "MANIFEST-000001") return false;
  for (const char* name : {"/db/CURRENT", "/db/LEDGER", "/LEDGER", "/SEAL"})
    if (fs::exists(root + name, ec)) return false;
  return std::ranges::none_of(files, [](const fs::path& file) {
    return file.extension() == ".log" || file.extension() == ".sst";
  });
}

Status mend_current(const std::string& db, const std::vector<std::string>& manifests,
                    std::vector<std::string>* found) {
  const std::string path = db + "/CURRENT";
  QUIRE_RETURN_IF_ERROR(only_a_file(path));
  const std::string text = beginning(path).value_or("");
  const std::string name = text.substr(0, text.find('\n'));
  const bool known = std::ranges::count(manifests, name) > 0;
  if (known && text == name + "\n") return {};
  if (!known && manifests.size() != 1) return {};  // which one is for the repair to find out
  const std::string& right = known ? name : manifests.front();
  say(found, "CURRENT of the record is damaged or lost", ", and written again",
      {{"path", path}, {"manifest", right}});
  return write_private_file(path, right + "\n");
}

/// Cuts what a power failure left of an edit that was being written. RocksDB had not acted on it,
/// as it syncs a manifest first. A record that was closed has a seal and no such end.
Status mend_manifest(const std::string& root, std::vector<std::string>* found) {
  std::error_code ec;
  if (fs::exists(root + "/SEAL", ec)) return {};
  std::string name = beginning(root + "/db/CURRENT").value_or("");
  name.resize(std::min(name.size(), name.find('\n')));
  const std::string path = root + "/db/" + name;
  if (!name.starts_with("MANIFEST-") || !fs::is_regular_file(path, ec)) return {};
  bool failed = false;
  const std::string manifest = file_bytes(path, &failed);
  const auto whole = torn_manifest_end(manifest);
  if (!whole || failed) return {};
  // More than the edit that was being written is lost, which is for the repair.
  const auto note = ManifestNote::read(root + "/EDITS", record_identity(root + "/db"));
  if (note && !note->is_in(name, manifest)) return {};
  const std::string kept = root + "/" + name + ".torn";
  QUIRE_RETURN_IF_ERROR(write_private_file(kept, manifest));
  QUIRE_RETURN_IF_ERROR(shorten_file(path, *whole));
  say(found, "the end of the manifest is torn, as after a power failure", ", and cut",
      {{"path", path}, {"bytes", std::to_string(manifest.size() - *whole)}, {"kept", kept}});
  return {};
}

}  // namespace

Status mend_folder(const std::string& root, std::vector<std::string>* found) {
  QUIRE_RETURN_IF_ERROR(end_replacement(root));
  const std::string db = root + "/db";
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(db));
  const auto edits = manifests(files);
  std::error_code ec;
  if (edits.empty() && !fs::exists(db + "/CURRENT", ec)) return {};  // no record, or a new store
  if (is_unfinished(root, files, edits)) {
    say(found, "the record was being made when its process ended", ", and is begun anew",
        {{"path", db}});
    fs::remove(db + "/" + edits.front(), ec);
    return {};
  }
  for (const char* name : {"/SEAL", "/LEDGER", "/LOST_WRITES", "/EDITS"})
    QUIRE_RETURN_IF_ERROR(only_a_file(root + name));
  if (fs::is_regular_file(root + "/extents", ec))
    QUIRE_RETURN_IF_ERROR(set_aside(root + "/extents"));
  QUIRE_RETURN_IF_ERROR(only_a_file(db + "/LOCK"));
  QUIRE_RETURN_IF_ERROR(only_a_file(db + "/LEDGER"));
  QUIRE_RETURN_IF_ERROR(only_a_file(db + "/IDENTITY"));
  if (fs::is_regular_file(db + "/IDENTITY", ec) && fs::file_size(db + "/IDENTITY", ec) == 0)
    fs::remove(db + "/IDENTITY", ec);
  for (const fs::path& file : files) {
    if (file.filename().string().starts_with("OPTIONS-"))
      QUIRE_RETURN_IF_ERROR(only_a_file(file.string()));
  }
  QUIRE_RETURN_IF_ERROR(mend_current(db, edits, found));
  return mend_manifest(root, found);
}

}  // namespace quire
