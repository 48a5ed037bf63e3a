#include "server/commands/model_files/embedded_model.h"

#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <vector>

#include "base/index.h"
#include "server/hub/model_cache.h"

// Defined by embedded_model.S; both are the same address if nothing is embedded.
extern "C" const char quire_embedded_begin[];
extern "C" const char quire_embedded_end[];

namespace quire {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string path;
  std::string_view bytes;
};

/// Returns the files of a tar archive (ustar, as cmake -E tar writes it).
Result<std::vector<Entry>> entries_of(std::string_view archive) {
  const auto bad = [] { return Status::corruption("the embedded model is damaged"); };
  std::vector<Entry> all;
  while (archive.size() >= 512 && archive[0] != '\0') {
    const std::string_view head = archive.substr(0, 512);
    const auto text = [&](std::size_t at, std::size_t size) {
      return std::string(head.substr(at, std::min(head.substr(at, size).find('\0'), size)));
    };
    std::size_t size = 0;
    for (const char c : text(124, 12)) {
      if (c < '0' || c > '7') break;
      size = size * 8 + to_size(c - '0');
    }
    const std::size_t blocks = (size + 511) / 512 * 512;
    if (archive.size() - 512 < blocks) return bad();
    const std::string prefix = text(345, 155), name = text(0, 100);
    const std::string path = prefix.empty() ? name : prefix + "/" + name;
    if (head[156] == '0' || head[156] == '\0') {
      if (path.find("..") != std::string::npos || path.starts_with('/')) return bad();
      all.push_back({path, archive.substr(512, size)});
    }
    archive.remove_prefix(512 + blocks);
  }
  if (all.empty()) return bad();
  return all;
}

std::string short_hash(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1)
    return "model";
  std::string out;
  char two[3];
  for (unsigned i = 0; i < 8; ++i) {
    std::snprintf(two, sizeof two, "%02x", digest[i]);
    out += two;
  }
  return out;
}

bool whole(const fs::path& folder, const std::vector<Entry>& entries) {
  for (const Entry& e : entries) {
    std::error_code ec;
    if (fs::file_size(folder / e.path, ec) != e.bytes.size() || ec) return false;
  }
  return true;
}

/// Writes into a temporary folder and renames it, because two processes may unpack concurrently.
Status unpack(const fs::path& folder, const std::vector<Entry>& entries) {
  const fs::path fresh = folder.string() + "." + std::to_string(::getpid());
  std::error_code ec;
  const auto failed = [&](const fs::path& at, int error) {
    std::error_code none;
    fs::remove_all(fresh, none);
    const std::string message = "cannot write '" + at.string() + "': " + std::strerror(error);
    return error == ENOSPC ? Status::exhausted(message) : Status::io(message);
  };
  for (const Entry& e : entries) {
    const fs::path file = fresh / e.path;
    fs::create_directories(file.parent_path(), ec);
    if (ec) return failed(file.parent_path(), ec.value());
    std::ofstream out(file, std::ios::binary | std::ios::trunc);
    out.write(e.bytes.data(), static_cast<std::streamsize>(e.bytes.size()));
    out.close();
    if (!out) return failed(file, errno);
  }
  fs::remove_all(folder, ec);  // the existing folder is incomplete
  if (::rename(fresh.c_str(), folder.c_str()) != 0 && !whole(folder, entries))
    return failed(folder, errno);
  fs::remove_all(fresh, ec);
  return {};
}

}  // namespace

Result<std::string> unpack_embedded_model() {
  const std::string_view archive(quire_embedded_begin,
                                 to_size(quire_embedded_end - quire_embedded_begin));
  if (archive.empty()) return Status::not_found("this build embeds no model");
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, entries_of(archive));
  const std::string name = "embedded/" + short_hash(archive);
  const fs::path home = hub::HubOptions::from_environment().root / name;
  if (whole(home, entries)) return home.string();
  const Status written = unpack(home, entries);
  if (written.ok()) return home.string();
  std::error_code ec;
  // The folder's name contains the user id, so that no other user can supply files for us to load.
  const fs::path other = fs::temp_directory_path(ec) / ("quire-" + std::to_string(::getuid())) /
                         name;
  if (ec) return written;
  struct stat info {};
  const fs::path base = other.parent_path().parent_path();
  if (::mkdir(base.c_str(), 0700) != 0 &&
      (errno != EEXIST || ::lstat(base.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) ||
       info.st_uid != ::getuid() || (info.st_mode & 022) != 0))
    return written;
  if (whole(other, entries)) return other.string();
  if (!unpack(other, entries).ok()) return written;
  return other.string();
}

}  // namespace quire
