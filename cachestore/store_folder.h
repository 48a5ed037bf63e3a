/// The folder of a store on disk: who may open it, what is in it, how much it takes. Layout:
/// README.md.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace quire {

inline constexpr int kStoreLayoutVersion = 1;

/// Bytes allocated by one file or directory itself (as `du` counts); 0 when it is not there.
std::uint64_t allocated_bytes(const std::string& path);
/// The directory itself and the files directly in it.
std::uint64_t directory_bytes(const std::string& path);

/// A checked and locked store folder. The lock is held while the object lives. Threads: const
/// methods concurrently.
class StoreFolder {
 public:
  /// Makes the folder if its parent exists; refuses files, foreign folders, newer layouts, folders
  /// in use and folders that cannot be written. With read_only nothing is made, written or locked.
  /// Errors: see open_store.
  static Result<StoreFolder> open(const std::string& path, bool read_only);

  StoreFolder(StoreFolder&& other) noexcept;
  StoreFolder& operator=(StoreFolder&&) = delete;
  ~StoreFolder();

  const std::string& root() const { return root_; }
  std::string db() const { return root_ + "/db"; }          ///< log, manifest and records
  std::string values() const { return root_ + "/blocks"; }  ///< one file per segment
  std::string sketches() const { return root_ + "/sketches"; }
  /// Files being written; emptied at open
  std::string staging() const { return root_ + "/staging"; }

  /// All but the segments' files.
  std::uint64_t catalog_bytes() const;
  /// Free for this process; UINT64_MAX when unknown.
  std::uint64_t free_bytes() const;
  bool supports_direct_io() const;

  /// After a clean close: digests of the manifest and the log, whose last record may otherwise be
  /// lost to a flipped bit that makes it look torn. open() compares and removes them, so a crash
  /// leaves no seal and a torn tail is then an ordinary one.
  void seal() const;

 private:
  Status check_seal(bool read_only) const;
  StoreFolder(std::string root, int lock_fd) : root_(std::move(root)), lock_fd_(lock_fd) {}
  std::string root_;
  int lock_fd_ = -1;
};

}  // namespace quire
