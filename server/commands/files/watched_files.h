/// This file says which files of a watched folder are to be taken now.
#pragma once

#include <vector>

#include "server/commands/files/file_walk.h"

namespace quire {

/// Remembers what was taken. A file that changes is taken once it has been the same at two looks;
/// others do not wait for it. Threads: one at a time.
class WatchedFiles {
 public:
  /// `taken`: what was taken before, in the order of find_files().
  explicit WatchedFiles(std::vector<FoundFile> taken) : taken_(taken), last_(std::move(taken)) {}

  /// Leaves those files in the walk that have not changed since the last look, and notes in it
  /// those that are missing since. Returns whether one of them is new or has changed since it was
  /// taken, or one that was taken is missing at two looks.
  bool look(FileWalk& walk);
  /// Reports that the files of this walk, of the last look, were taken. Without it they are due
  /// again.
  void taken(const FileWalk& walk);

 private:
  std::vector<FoundFile> taken_, last_;  // by root and name
};

}  // namespace quire
