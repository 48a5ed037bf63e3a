/// This file declares the folder of a store on disk: its lock, contents and size. The layout is in
/// README.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

/// Layout 1 kept each segment in table files of its own (blocks/, sketches/); such a store opens
/// and its segments are moved.
inline constexpr int kStoreLayoutVersion = 2;

/// Returns the bytes allocated by one file or directory itself (as `du` counts); 0 if it does not
/// exist.
std::uint64_t allocated_bytes(const std::string& path);
/// Returns the bytes of the directory itself and the files directly in it.
std::uint64_t directory_bytes(const std::string& path);

/// What a folder is opened for.
enum class FolderUse : std::uint8_t {
  kStore,
  kRepair,   ///< the record need not be what was sealed
  kLook,     ///< of a repair that changes nothing: the same, and damage stays as it is
  kRestore,  ///< a backup is put there: what an interrupted restore left is deleted
};

/// A checked and locked store folder. The lock is held while the object lives. Threads: const
/// methods concurrently.
class StoreFolder {
 public:
  /// Creates the folder if its parent exists. Rejects files, foreign folders, newer layouts,
  /// folders in use and folders that cannot be written. With read_only nothing is created, written
  /// or locked. Errors: see open_store.
  /// Once it is locked, what is damaged besides the record is mended (mend_folder.h), but for
  /// kLook: then a folder that is missing is kNotFound, and an interrupted repair
  /// kFailedPrecondition. A folder in which a restore has not ended is kFailedPrecondition but for
  /// kRestore, which takes no other folder that holds anything.
  static Result<StoreFolder> open(const std::string& path, bool read_only,
                                  FolderUse use = FolderUse::kStore);

  StoreFolder(StoreFolder&& other) noexcept;
  StoreFolder& operator=(StoreFolder&&) = delete;
  ~StoreFolder();

  const std::string& root() const { return root_; }
  std::string db() const { return root_ + "/db"; }            ///< log, manifest and records
  std::string extents() const { return root_ + "/extents"; }  ///< values of all segments
  std::string ledger() const { return root_ + "/LEDGER"; }    ///< of WriteLedger
  /// Its twin, which goes where the record goes.
  std::string ledger_twin() const { return db() + "/LEDGER"; }
  std::string edits() const { return root_ + "/EDITS"; }  ///< of ManifestNote
  std::string work() const;                               ///< in which a repair works
  /// Of UntoldLosses.
  std::string lost_writes() const { return root_ + "/LOST_WRITES"; }
  /// Folders of layout 1; they exist only until its segments are moved.
  std::string values() const { return root_ + "/blocks"; }
  std::string sketches() const { return root_ + "/sketches"; }

  /// Deletes the empty folders of layout 1.
  void remove_layout1() const;
  /// Returns the bytes of everything except the segments' files.
  std::uint64_t catalog_bytes() const;
  /// Returns the size of the file system; 0 if unknown.
  std::uint64_t disk_bytes() const;
  /// Returns the free bytes for this process; UINT64_MAX if unknown.
  std::uint64_t free_bytes() const;
  bool supports_direct_io() const;

  // ---- for the repair ----
  /// Makes a folder `name` in the store's folder, with a number behind it if there is one already.
  Result<std::string> make_aside(const std::string& name) const;
  /// Makes, in work(), a folder with what a repair reads of this one, mended as a start would mend
  /// it, and returns that; `found` receives a line for what is damaged. This object outlives it.
  /// Errors: kIo, kResourceExhausted.
  Result<StoreFolder> make_mended_copy(std::vector<std::string>* found) const;
  /// Makes a folder for work, which only this user can read.
  Status make_work_folder(const std::string& path) const;
  /// Puts the database work()/db, which is closed, in the place of the record. The old one and the
  /// files beside it go to the folder `kept`, with the KV unless `keep_kv`. After a failure or a
  /// crash in between, the next open() ends it, if is_replacing(); else nothing has changed.
  Status replace_record(const std::string& kept, bool keep_kv) const;
  bool is_replacing() const;

  /// Moves the record with the files beside it to a new folder `name` in this one, and returns
  /// that. Errors: kIo.
  Result<std::string> set_record_aside(const std::string& name) const;

  // ---- for the restore (restoring.h) ----
  /// Notes that the record came from a backup, and that all of it is there. Errors: kIo,
  /// kResourceExhausted.
  Status end_restore() const;
  /// Deletes what was restored.
  void abandon_restore() const;

  // ---- for the copy of the record ----
  /// Returns whether the record came from a backup and its copy has not learned that yet; the
  /// second one says that it has.
  bool was_restored() const;
  void forget_restored() const;
  /// Returns whether the record has lost writes, which its copy, that could not be opened since,
  /// may have; the others note and forget that.
  bool wants_copy() const;
  Status say_wants_copy() const;
  void forget_wants_copy() const;

  /// Writes digests of the manifest and the log after a clean close. Without them a flipped bit
  /// could make the last log record look torn, and it would be lost. open() compares and removes
  /// them, so after a crash there is no seal and a torn tail is expected.
  void seal() const;

 private:
  Status check_seal(bool read_only) const;
  StoreFolder(std::string root, int lock_fd) : root_(std::move(root)), lock_fd_(lock_fd) {}
  std::string root_;
  int lock_fd_ = -1;
};

}  // namespace quire
