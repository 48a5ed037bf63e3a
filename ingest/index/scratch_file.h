/// A file of an index without a name: it goes with the process, and nothing has to be cleaned up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"

namespace quire {

/// Copies share the file, which is closed with the last of them. Reads and writes go through system
/// calls, because an error of the disk in a mapping would be a signal.
///
/// Threads: reads concurrently, others exclusively. Errors: kIo, kResourceExhausted (disk full).
class ScratchFile {
 public:
  /// Makes an empty file in `folder`.
  static Result<ScratchFile> create(const std::string& folder);

  /// Reads exactly `bytes`; the end of the file before that is an error.
  Status read(std::uint64_t offset, void* to, std::size_t bytes) const;
  /// Has the disk begin a read() that will follow, so that several take the time of one.
  void prefetch(std::uint64_t offset, std::size_t bytes) const;
  Status write(std::uint64_t offset, const void* from, std::size_t bytes);
  Status resize(std::uint64_t bytes);

 private:
  std::shared_ptr<const int> fd_;
};

}  // namespace quire
