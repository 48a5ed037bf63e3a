#include "server/commands/files/watched_files.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace quire {
namespace {

auto key(const FoundFile& file) { return std::tie(file.root, file.name); }

/// Returns the file of the same place among sorted ones; null: there is none.
const FoundFile* find(const std::vector<FoundFile>& files, const FoundFile& file) {
  const auto at = std::lower_bound(
      files.begin(), files.end(), file,
      [](const FoundFile& a, const FoundFile& b) { return key(a) < key(b); });
  return at != files.end() && key(*at) == key(file) ? &*at : nullptr;
}

bool is_among(const FoundFile& file, const std::vector<FoundFile>& files) {
  const FoundFile* const found = find(files, file);
  return found != nullptr && *found == file;
}

}  // namespace

bool WatchedFiles::look(FileWalk& walk) {
  const std::vector<FoundFile> before = std::exchange(last_, walk.files);
  for (const FoundFile& file : before)
    if (find(last_, file) == nullptr) walk.just_gone.push_back(file);
  const bool gone = std::any_of(taken_.begin(), taken_.end(), [&](const FoundFile& file) {
    return find(last_, file) == nullptr && find(before, file) == nullptr;
  });
  std::erase_if(walk.files, [&](const FoundFile& file) { return !is_among(file, before); });
  return gone || std::any_of(walk.files.begin(), walk.files.end(),
                             [&](const FoundFile& file) { return !is_among(file, taken_); });
}

void WatchedFiles::taken(const FileWalk& walk) {
  std::vector<FoundFile> now;
  for (const FoundFile& file : last_) {
    // One that is still changing stays as it was taken, so that it is due once it rests.
    if (is_among(file, walk.files))
      now.push_back(file);
    else if (const FoundFile* const old = find(taken_, file))
      now.push_back(*old);
  }
  for (const FoundFile& file : walk.just_gone)
    if (const FoundFile* const old = find(taken_, file)) now.push_back(*old);
  std::ranges::sort(now, [](const FoundFile& a, const FoundFile& b) { return key(a) < key(b); });
  taken_ = std::move(now);
}

}  // namespace quire
