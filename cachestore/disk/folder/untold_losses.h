/// UntoldLosses keeps the lost writes of a store until a start has told them.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cachestore/format/lost_writes.h"

namespace quire {

/// A small file beside the record. Who finds lost writes adds them here before the ledger forgets
/// them; those of several starts add up. Every start shows them, and only told() or mended() ends
/// that: a start may fail after it opened the store, and a command for administrators tells nobody
/// who watches the service.
///
/// Threads: all methods concurrently, but open().
class UntoldLosses {
 public:
  /// What the file says, in one line with a checksum.
  struct Note {
    LostWrites lost;
    /// Writes up to this number were compared (write_ledger.h): a loss among them is in `lost`.
    std::uint64_t compared = 0;

    std::string text() const;
    /// Returns nothing for what text() did not make, or for no loss.
    static std::optional<Note> parse(std::string_view text);
  };

  /// Reads the file at `path`, if there is one. It is there only after a loss, so a damaged one
  /// stands for one write at least.
  void open(std::string path);
  /// Returns what this process tells: what the file had, and what was added since.
  LostWrites shown() const;
  std::uint64_t compared() const;
  /// Adds a loss, which is on stable storage then. shown() has it also after an error. Errors: kIo,
  /// kResourceExhausted.
  Status add(const LostWrites& lost, std::uint64_t compared);
  /// A start that is ready shows the losses, so that later ones need not.
  void told();
  /// What was lost is back.
  void mended();

 private:
  Status write() const;  // mu_ held
  void remove();         // mu_ held

  std::string path_;
  mutable std::mutex mu_;
  Note untold_;       // guarded by mu_
  LostWrites shown_;  // guarded by mu_
};

}  // namespace quire
