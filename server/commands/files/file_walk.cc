#include "server/commands/files/file_walk.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>

#include "ingest/document/document_id.h"
#include "server/commands/files/glob.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

bool wanted(const WalkFilter& filter, const std::string& name) {
  const auto hits = [&](const std::string& pattern) { return filter_matches(pattern, name); };
  if (std::any_of(filter.exclude.begin(), filter.exclude.end(), hits)) return false;
  return filter.include.empty() || std::any_of(filter.include.begin(), filter.include.end(), hits);
}

class Walker {
 public:
  explicit Walker(const WalkFilter& filter) : filter_(filter) {}

  Status add(const std::string& text) {
    struct stat info;
    const fs::path path(text);
    if (::stat(text.c_str(), &info) != 0) {
      if (errno == ENOENT && is_glob(text)) return add_pattern(text);
      const std::string message = text + ": " + std::strerror(errno);
      return errno == ENOENT ? Status::not_found(message) : Status::io(message);
    }
    std::error_code error;
    if (S_ISDIR(info.st_mode)) {
      const fs::path root = fs::canonical(path, error);
      if (error) return Status::io(text + ": " + error.message());
      out_.roots.push_back(root);
      walk(root, path, "", {});
      return {};
    }
    const fs::path folder = fs::canonical(path.has_parent_path() ? path.parent_path() : ".", error);
    if (error) return Status::io(text + ": " + error.message());
    take({path, folder, path.filename().string(), 0, 0, true});
    return {};
  }

  Result<FileWalk> finish() {
    auto& files = out_.files;
    // A file that was named counts as such, however else it was found.
    const auto key = [](const FoundFile& f) { return std::tie(f.root, f.name); };
    std::sort(files.begin(), files.end(), [&](const FoundFile& a, const FoundFile& b) {
      return key(a) != key(b) ? key(a) < key(b) : a.named > b.named;
    });
    files.erase(
        std::unique(files.begin(), files.end(),
                    [&](const FoundFile& a, const FoundFile& b) { return key(a) == key(b); }),
        files.end());
    std::sort(out_.roots.begin(), out_.roots.end());
    out_.roots.erase(std::unique(out_.roots.begin(), out_.roots.end()), out_.roots.end());
    std::map<std::string, const FoundFile*> file_of;
    for (const FoundFile& file : files) {
      const std::string id = document_id_of_path(file.name);
      const auto [other, fresh] = file_of.emplace(id, &file);
      if (fresh) continue;
      std::error_code error;
      if (fs::equivalent(other->second->path, file.path, error)) continue;
      return Status::invalid("PATH", other->second->path.string() + " and " + file.path.string() +
                                         " both have the id " + id +
                                         "; name the folder above them instead");
    }
    return std::move(out_);
  }

 private:
  void take(FoundFile file) {
    struct stat info;
    if (::stat(file.path.c_str(), &info) != 0) {
      // What a link names, or what was there a moment ago, may be gone.
      out_.skipped.push_back({file.path.string(), std::strerror(errno),
                              errno != ENOENT && errno != ELOOP && errno != ENOTDIR});
      return;
    }
    if (!S_ISREG(info.st_mode)) {
      out_.skipped.push_back({file.path.string(), "is not a regular file"});
      return;
    }
    file.bytes = static_cast<std::uint64_t>(info.st_size);
    file.modified_ns = std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    out_.files.push_back(std::move(file));
  }

  /// Adds the files below `folder`, whose path from the root is `below`. With a pattern only those
  /// that match it.
  void walk(const fs::path& root, const fs::path& folder, const std::string& below,
            const std::string& pattern) {
    std::error_code error;
    fs::directory_iterator entries(folder, error);
    if (error) {
      out_.skipped.push_back({folder.string(), error.message(), true});
      return;
    }
    for (; entries != fs::directory_iterator(); entries.increment(error)) {
      const fs::path path = entries->path();
      const std::string plain = path.filename().string();
      if (plain.starts_with('.') || plain.starts_with("~$")) continue;  // open in an office program
      const std::string name = below.empty() ? plain : below + "/" + plain;
      std::error_code ignored;
      if (entries->is_directory(ignored)) {
        if (!entries->is_symlink(ignored))
          walk(root, path, name, pattern);
        else if (pattern.empty())
          out_.skipped.push_back({path.string(), "is a link to a folder; name the folder itself"});
      } else if ((pattern.empty() || glob_matches(pattern, name)) && wanted(filter_, name)) {
        take({path, root, name, 0, 0, false});
      }
    }
    // An increment that fails is the end.
    if (error) out_.skipped.push_back({folder.string(), error.message(), true});
  }

  /// The part before the first component with a pattern is the root.
  Status add_pattern(const std::string& text) {
    const auto special = text.find_first_of("*?[");
    const auto slash = text.rfind('/', special);
    const std::string folder = slash == std::string::npos ? "."
                               : slash == 0               ? "/"
                                                          : text.substr(0, slash);
    std::error_code error;
    const fs::path root = fs::canonical(folder, error);
    if (error) return Status::not_found(text + ": there is no folder " + folder);
    const std::size_t before = out_.files.size() + out_.skipped.size();
    walk(root, folder, "", slash == std::string::npos ? text : text.substr(slash + 1));
    if (out_.files.size() + out_.skipped.size() == before)
      return Status::not_found(text + ": no file matches");
    out_.roots.push_back(root);
    return {};
  }

  const WalkFilter& filter_;
  FileWalk out_;
};

}  // namespace

Result<FileWalk> find_files(const std::vector<std::string>& paths, const WalkFilter& filter) {
  Walker walker(filter);
  for (const std::string& path : paths) QUIRE_RETURN_IF_ERROR(walker.add(path));
  return walker.finish();
}

}  // namespace quire
