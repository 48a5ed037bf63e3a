/// WriteLedger remembers acknowledged writes beside the database, so that a start notices when the
/// database has lost some.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/lost_writes.h"

namespace quire {

/// A file of the last kEntries acknowledged writes: number, time and families. Every write also
/// puts its number into each family that it changes (kSlots records there, one for each number
/// modulo kSlots). A write of the ledger whose number a family lacks is lost. A log that was cut,
/// emptied, deleted or replaced by an older one loses writes in just this way, and the database
/// itself cannot tell that from a crash.
///
/// An entry is written after its write was acknowledged and is not synchronized: after a loss of
/// power the ledger may know less than the database, never more.
///
/// The file may have a twin, which gets the same entries. What either has counts, so damage of one
/// of them hides no loss.
///
/// Threads: next() and add() concurrently, the rest while nobody else uses it.
class WriteLedger {
 public:
  static constexpr std::size_t kEntries = 1024, kSlots = 256;
  using Families = std::uint32_t;  ///< one bit each
  static constexpr std::uint64_t kUnreadable = UINT64_MAX;
  /// Returns the number in a slot of a family (a bit number); 0: none; kUnreadable: damaged, which
  /// is said where it matters.
  using SlotReader = std::function<std::uint64_t(int family, std::size_t slot)>;

  struct Entry {
    std::uint64_t number = 0;
    std::int64_t ms = 0;
    Families families = 0;
  };
  /// Returns the entries of a file that are whole.
  static std::vector<Entry> parse(std::string_view file);

  WriteLedger() = default;
  WriteLedger(const WriteLedger&) = delete;
  WriteLedger& operator=(const WriteLedger&) = delete;
  ~WriteLedger();

  /// Opens the file and its twin (empty: none), which are made if there are none, and reads them. A
  /// twin that cannot be opened is left out, with a warning. Errors: kIo.
  Status open(const std::string& path, std::uint64_t compared = 0, const std::string& twin = {});
  /// Reads the entries of the files. Damaged ones count for nothing, nor do those of writes up to
  /// number `compared`, whose loss is known; later writes have larger numbers.
  void read(std::uint64_t compared);
  /// Returns the numbers of writes in a part of a log of RocksDB, in their order. Few of them are
  /// not such numbers: bytes of texts may look alike.
  static std::vector<std::uint64_t> numbers_in(std::string_view log);
  /// Returns the largest number after `last` that a log of RocksDB has anywhere, also where its
  /// records cannot be read; `last` if there is none.
  static std::uint64_t last_in_log(std::string_view log, std::uint64_t last);
  /// Returns the largest number in the families.
  static std::uint64_t last_present(int num_families, const SlotReader& read);
  /// Returns the entries that were read, until forget().
  const std::vector<Entry>& entries() const { return entries_; }
  /// Compares the entries with the database, and goes on after the largest number that they or the
  /// database have.
  LostWrites compare(int num_families, const SlotReader& read);
  /// Forgets the entries, also those in the files. What is lost of them must be on stable storage
  /// elsewhere (untold_losses.h). Errors: kIo.
  Status forget();

  /// Returns the number of the newest write, acknowledged or under way; 0 before compare().
  std::uint64_t last() const { return last_; }

  /// The right to put one number into its slot, until destroyed.
  struct Turn {
    std::uint64_t number = 0;
    std::unique_lock<std::mutex> lock;
  };
  /// Returns the number of the next write, whose turn lasts until it is in the database: a slow
  /// write may not put its number over a later one. Waits while kSlots writes are under way.
  Turn next();
  /// Notes an acknowledged write. A failure of the disk is ignored: it only makes the ledger know
  /// less.
  void add(std::uint64_t number, Families families, std::int64_t now_ms);

  /// Key and value of a number in a family. Keys begin with a zero byte, as no other key does.
  static std::string slot_key(std::size_t slot);
  static std::string slot_value(std::uint64_t number);
  /// Returns 0 for what slot_value() did not make.
  static std::uint64_t slot_number(std::string_view value);
  static bool is_slot_key(std::string_view key) { return key.starts_with('\0'); }

 private:
  struct File {
    std::string path;
    int fd = -1;
  };
  static void read_file(const File& file, std::vector<Entry>* out);

  std::vector<File> files_;     ///< that are open
  std::vector<Entry> entries_;  ///< as read
  std::atomic<std::uint64_t> last_{0};
  struct Slot {
    std::mutex mu;
    std::uint64_t taken = 0;  ///< the largest number that was given; guarded by mu
  };
  std::array<Slot, kSlots> slots_;
};

}  // namespace quire
