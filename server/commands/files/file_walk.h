/// Which files `quire ingest` reads: those named, and those below named folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

struct FoundFile {
  std::filesystem::path path;
  /// Absolute path of the folder that was named, or of the one that a named file lies in.
  std::filesystem::path root;
  std::string name;  ///< path below the root, with '/'; ids are made of it
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
  bool named = false;  ///< on the command line itself
  friend bool operator==(const FoundFile&, const FoundFile&) = default;
};

struct SkippedFile {
  std::string path, reason;
  bool unreadable = false;  ///< it may have texts, so leaving it out is a failure
};

struct FileWalk {
  std::vector<FoundFile> files;  ///< by root and name
  std::vector<SkippedFile> skipped;
  std::vector<std::filesystem::path> roots;  ///< of folders and patterns, not of single files
  /// Files that were there a moment ago. They may be back soon, so they do not count as deleted.
  std::vector<FoundFile> just_gone;
};

struct WalkFilter {
  std::vector<std::string> include;  ///< patterns (glob.h); empty: all
  std::vector<std::string> exclude;
};

/// Finds the files that `paths` mean: files, folders with all below them, and patterns. Files and
/// folders whose name begins with '.' are left out below a folder, and so are links to folders,
/// which may lead in a circle. A file that is meant twice is found once. Errors, with the path:
/// kNotFound (no such file, or no file matches a pattern), kInvalidArgument (two files would have
/// the same id), kIo.
Result<FileWalk> find_files(const std::vector<std::string>& paths, const WalkFilter& filter);

}  // namespace quire
