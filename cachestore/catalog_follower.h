/// This file declares how a store follows a shared catalog: it compares the whole once, and then
/// applies the changes of other replicas in order. What the disk has no room for is fetched later.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/format/catalog_keys.h"

namespace quire {

/// The documents of a store that are copies of a catalog's. Threads: all methods concurrently.
class CatalogCopy {
 public:
  virtual ~CatalogCopy() = default;
  /// Returns which state of the document is here; zeros: none, or one that cannot be read.
  virtual CatalogRevision copied(const CatalogName& name) = 0;
  /// Stores a state of a document, unless a later one is or was here. Without a body that of before
  /// stays. Errors: kResourceExhausted (the disk has no room for it; nothing has changed).
  virtual Status apply(const CatalogEntry& entry, const CatalogBody* body) = 0;
  /// Deletes the copy unless it is of a later change.
  virtual Status apply_removal(const CatalogName& name, std::uint64_t number) = 0;
  /// Returns names and numbers of copies after the first name up to the second, which is included
  /// (empty: to the end), in order of bytes.
  virtual Result<std::vector<CatalogEntry>> copies(const CatalogName& after,
                                                   const CatalogName& last) = 0;
  /// Puts documents of this store that the catalog does not have into it. Errors:
  /// kFailedPrecondition (it has one of them with other content).
  virtual Status share_own() = 0;
  /// Tells the catalog of uses that move the end of a document.
  virtual Status share_uses() = 0;
  /// Called once all changes up to here are applied.
  virtual void passed(const CatalogPosition& position) = 0;
  /// Small records of the store. Errors: kNotFound.
  virtual Result<std::string> load(std::string_view name) = 0;
  /// Also where the disk has no room for documents.
  virtual Status save(std::string_view name, std::string_view value) = 0;
};

/// Threads: start() and stop() on one thread, stats() and is_joined() on any. A thread of its own
/// follows the catalog from start() to stop().
class CatalogFollower {
 public:
  CatalogFollower(SharedCatalog& catalog, CatalogCopy& copy, std::chrono::milliseconds poll,
                  std::function<std::int64_t()> clock_ms);
  ~CatalogFollower() { stop(); }
  CatalogFollower(const CatalogFollower&) = delete;
  CatalogFollower& operator=(const CatalogFollower&) = delete;

  /// Brings the copy up to date, and goes on doing so. A catalog that is away delays that, if the
  /// store has followed it before. Errors: kIo (it is away, and was never seen),
  /// kFailedPrecondition (the store follows another catalog, or has documents that differ), and
  /// those of the copy.
  Status start();
  void stop();
  /// Returns whether the copy is one of this catalog. If not, nothing may be changed.
  bool is_joined() const { return joined_; }
  /// Returns state and counts; `written`, `conflicts` and `failures` are not of the follower.
  CatalogStats stats() const;

 private:
  void loop();
  Status step();
  Status join();
  Status follow();
  /// Compares everything with the catalog.
  Status compare();
  /// Brings these documents to the state that the catalog has now. Those that are not there are
  /// deleted here, by the changes of these numbers.
  Status fetch(std::span<const CatalogChange> changes);
  /// Applies a state. One that the disk has no room for is left for fetch_missing(), and a copy of
  /// an earlier text goes: it would pass for the document's.
  Status apply(const CatalogEntry& entry, const CatalogBody* body);
  void set_missing(const CatalogChange& change, const Status& why);
  void set_here(const CatalogName& name);
  /// Fetches documents for which there was no room, until there is none again.
  Status fetch_missing();
  Status save_position();
  void set_state(const Status& status);

  SharedCatalog& catalog_;
  CatalogCopy& copy_;
  const std::chrono::milliseconds poll_;
  const std::function<std::int64_t()> clock_ms_;
  std::atomic<bool> stop_{false}, joined_{false};
  CatalogPosition position_{};       // of the thread that steps
  CatalogWriters writers_{};         // of the changes there; of the thread that steps
  Clock::time_point next_upkeep_{};  // of the thread that steps
  Clock::time_point next_trim_{};    // of the thread that steps
  /// Changes up to position_ for which there was no room; of the thread that steps. While there are
  /// some the position is not saved, so the next start has them from the log.
  std::map<CatalogName, std::uint64_t> missing_;
  bool too_many_missing_ = false;           // more than are remembered; of the thread that steps
  CatalogName tried_;                       // last of missing_; of the thread that steps
  Clock::time_point next_fetch_{};          // of missing_; of the thread that steps
  std::atomic<std::uint64_t> not_here_{0};  // size of missing_
  std::atomic<std::uint64_t> behind_{0}, applied_{0}, whole_reads_{0};
  mutable std::mutex mu_;
  Status state_;               // guarded by mu_
  std::int64_t since_ms_ = 0;  // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
