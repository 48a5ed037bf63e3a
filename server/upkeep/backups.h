/// Backups of the store that a running service makes: by the clock, and on request.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/status.h"
#include "cachestore/disk/backup.h"
#include "server/metrics/metrics.h"

namespace quire {

struct Services;

/// Makes incremental backups of documents and jobs, without KV. When the newest one was made is
/// kept in the store, so that a restart neither repeats nor forgets one. Threads: all methods.
class Backups : public std::enable_shared_from_this<Backups> {
 public:
  struct Options {
    std::string folder;
    std::chrono::hours every{24};  ///< 0: on request alone
    std::uint32_t keep = 7;        ///< newest ones that stay; 0: all
  };
  /// `services` outlives its timers and workers, which have to stop before the store ends; its
  /// store is needed from start() on.
  Backups(Services& services, Options options)
      : services_(services), options_(std::move(options)) {}

  /// Begins to make backups by the clock.
  void start();
  /// Makes one now. (disk, for as long as it takes) Errors: kUnavailable (one is being made), those
  /// of AdminStore::backup().
  Result<BackupReport> make();
  BackupCounts counts() const;

 private:
  void wait(std::chrono::milliseconds time);
  void run();

  Services& services_;
  const Options options_;
  std::mutex making_;  // held while one is made
  std::atomic<std::uint64_t> made_{0}, failed_{0};
  std::atomic<std::int64_t> last_ms_{0};
};

}  // namespace quire
