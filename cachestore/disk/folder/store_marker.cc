#include "cachestore/disk/folder/store_marker.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>

#include "base/index.h"
#include "cachestore/disk/folder/private_files.h"
#include "cachestore/disk/folder/replacement.h"
#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/hex_checksum.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// What a marker begins with; the number of the layout follows.
constexpr std::string_view kHead = "quire store layout ";

/// Returns the text of the marker; none: there is none. What lies in its place and is no file, or
/// cannot be read, gives no text that a marker has. Errors: kIo.
Result<std::optional<std::string>> read_marker(const std::string& root) {
  const std::string path = root + "/STORE";
  // It would wait for who writes to it if it were a pipe.
  const FileHandle f(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (f.fd() < 0 && errno == ENOENT) return std::optional<std::string>();
  if (f.fd() < 0 && errno != ENXIO) return disk_error("read", path, errno);
  std::array<char, 4096> buffer;
  const ssize_t n = ::read(f.fd(), buffer.data(), buffer.size());
  return std::optional(std::string(buffer.data(), n < 0 ? 0 : to_size(n)));
}

/// Returns whether a folder has a record. Beside a marker, damaged as it may be, a table or a log
/// is enough; without one such files may be anybody's. Errors: kIo.
Result<bool> has_record(const std::string& root, bool beside_marker) {
  if (is_replacing(root)) return true;
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(root + "/db"));
  return std::ranges::any_of(files, [&](const fs::path& file) {
    const std::string name = file.filename().string();
    return name == "CURRENT" || name.starts_with("MANIFEST-") ||
           (beside_marker && (name.ends_with(".sst") || name.ends_with(".log")));
  });
}

/// Returns whether a folder is that of a store whose first start ended before there was a record:
/// it has nothing but what such a start makes, and more of that than the marker. Errors: kIo.
Result<bool> is_begun(const std::string& root) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, files_in(root));
  bool more = false;
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    const bool made = name == "LOCK" || name == "db" || name == "extents";
    if (!made && name != "STORE" && name != "STORE.tmp" && name != "lost+found") return false;
    more = more || made;
  }
  return more;
}

}  // namespace

std::string StoreMarker::text(int layout) {
  const std::string named = std::string(kHead) + std::to_string(layout) + " ";
  return named + hex_checksum(named) + "\n";
}

StoreMarker StoreMarker::parse(std::string_view text) {
  if (!text.starts_with(kHead)) return {};
  int layout = 0;
  const auto [at, error] = std::from_chars(text.data() + kHead.size(), text.data() + text.size(),
                                           layout);
  if (error != std::errc() || layout < 1) return {};
  if (text == StoreMarker::text(layout)) return {Kind::kChecked, layout};
  const bool plain = text == std::string(kHead) + std::to_string(layout) + "\n";
  return plain ? StoreMarker{Kind::kPlain, layout} : StoreMarker();
}

Result<FolderLook> look_at_folder(const std::string& root, int known_layout) {
  QUIRE_ASSIGN_OR_RETURN(const auto text, read_marker(root));
  const StoreMarker marker = text ? StoreMarker::parse(*text) : StoreMarker();
  const bool newer = marker.layout > known_layout;
  if (marker.layout > 0 && !newer) return FolderLook{true, marker.layout, false};
  if (marker.kind != StoreMarker::Kind::kChecked) {
    QUIRE_ASSIGN_OR_RETURN(bool is_store, has_record(root, text.has_value()));
    if (!is_store && text && !newer) {
      QUIRE_ASSIGN_OR_RETURN(is_store, is_begun(root));
    }
    std::error_code ec;
    const int layout = fs::is_directory(root + "/blocks", ec) ? 1 : known_layout;
    if (is_store) return FolderLook{true, layout, true};
    if (!text) return FolderLook();
  }
  if (newer)
    return Status(Code::kFailedPrecondition,
                  "the store in '" + root + "' was made by a newer version (layout " +
                      std::to_string(marker.layout) + ", this program knows " +
                      std::to_string(known_layout) + "): upgrade, or choose another folder",
                  "disk.path");
  return Status(Code::kCorruption,
                "'" + root + "/STORE' is damaged: it should begin with \"" + std::string(kHead) +
                    "\", and no store lies beside it",
                "disk.path");
}

Status write_marker(const std::string& root, int layout) {
  const std::string path = root + "/STORE", tmp = path + ".tmp";
  QUIRE_RETURN_IF_ERROR(only_a_file(path));
  QUIRE_RETURN_IF_ERROR(only_a_file(tmp));
  QUIRE_RETURN_IF_ERROR(write_private_file(tmp, StoreMarker::text(layout)));
  if (::rename(tmp.c_str(), path.c_str()) != 0)
    return disk_error("write to the store folder", root, errno);
  return sync_folder(root);
}

}  // namespace quire
