/// Remembers the first reply to an Idempotency-Key and returns it for later requests with that key,
/// at any replica of a shared catalog if the request changes something.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/status.h"
#include "cachestore/catalog/shared_records.h"
#include "cachestore/format/key.h"
#include "server/http/http_message.h"

namespace quire {

/// The store is bounded in replies and bytes and drops the oldest first. It is kept in memory;
/// save() and restore() carry replies to requests that changed something over a restart. Threads:
/// every method may be called concurrently; those marked (catalog) may wait for the shared catalog.
class IdempotencyStore {
 public:
  using Clock = std::chrono::steady_clock;
  struct Options {
    std::chrono::seconds keep{24 * 3600};
    std::size_t max_entries = 10000;
    std::size_t max_bytes = 64u << 20;
    /// Slots of whose end the catalog does not know. Beyond it no further one begins.
    std::size_t max_unreported = 10000;
  };
  /// Whether a reply lasts while the service runs, or save() keeps it over a restart and other
  /// replicas have it, too.
  enum class Keep : unsigned char { kRunning, kRestart };
  enum class Outcome : unsigned char { kFirst, kReplay, kInProgress, kMismatch };
  struct Lookup {
    Outcome outcome = Outcome::kFirst;
    std::shared_ptr<const HttpResponse> reply;  ///< set for kReplay
    bool shared = false;                        ///< of kFirst: the catalog knows that it has begun
  };

  explicit IdempotencyStore(Options options, std::function<Clock::time_point()> now = Clock::now)
      : options_(options), now_(std::move(now)) {}

  /// From now on replies that are kept for a restart are shared (null: no more). It outlives this
  /// object or the next call.
  void share(SharedReplies* shared);
  /// Looks up `slot`: API key + namespace + method + path with its query + Idempotency-Key. After
  /// kFirst the caller does the work, then calls complete() or forget(). (catalog, for kRestart)
  /// Errors, for kRestart: catalog_is_away(); nothing was begun, or the reply cannot be given yet.
  /// So it is also while there is too much that the catalog does not know.
  Result<Lookup> begin(const std::string& slot, const Digest& body, Keep keep = Keep::kRunning);
  /// (catalog) Errors: kFailedPrecondition (another replica has the request, and its reply counts);
  /// catalog_is_away(). The reply must not be given then: if this replica dies before settle()
  /// tells the catalog, a repetition runs again. begin() gives it once the catalog knows.
  Status complete(const std::string& slot, HttpResponse reply);
  /// Frees a slot whose work was not done, so that its next request is kFirst again. A remembered
  /// reply stays. Other replicas learn of it with the next settle().
  void forget(const std::string& slot);
  /// Tells the catalog what it does not know yet, and removes old replies there. It is called about
  /// every second. (catalog)
  Status settle();
  std::size_t size() const;

  /// Returns the newest replies that last over a restart, up to `max_bytes`. `unix_ms` is the
  /// current time.
  std::string save(std::int64_t unix_ms, std::size_t max_bytes) const;
  /// Restores what save() returned, except replies that are too old or already present.
  ///
  /// Layout, little-endian: u8 version 1, i64 Unix ms, u32 count, then oldest first: slot (u32
  /// length), digest of the body, i64 age in ms, u16 status, content type, u16 headers (name,
  /// value), body. Errors: kCorruption, and nothing was restored.
  Status restore(std::string_view saved, std::int64_t unix_ms);

 private:
  struct Entry {
    Digest body;
    std::shared_ptr<const HttpResponse> reply;  ///< null: still running
    Keep keep = Keep::kRunning;
    Clock::time_point at;
    std::list<std::string>::iterator age;
    std::size_t bytes = 0;
    bool shared = false;   // the catalog knows that this replica has begun it
    bool reported = true;  // the catalog knows how it ended, too
  };
  Status check_unreported();
  Status report(SharedReplies& shared, const std::string& slot);
  Lookup begin_here(const std::string& slot, const Digest& body, Keep keep);
  bool insert(const std::string& slot, Entry entry);
  void erase(std::unordered_map<std::string, Entry>::iterator it);
  void shrink(Clock::time_point now);

  const Options options_;
  const std::function<Clock::time_point()> now_;
  /// Held together by those who begin a request in the catalog, and alone by who frees one there,
  /// which must not meet its repetition.
  std::shared_mutex catalog_mu_;
  mutable std::mutex mu_;
  std::unordered_map<std::string, Entry> entries_;  // guarded by mu_
  std::list<std::string> ages_;                     // guarded by mu_: oldest first
  std::size_t bytes_ = 0;                           // guarded by mu_
  SharedReplies* shared_ = nullptr;                 // guarded by mu_
  /// Slots that have ended, or may have begun, without the catalog's knowledge. Guarded by mu_.
  std::unordered_set<std::string> unreported_;
  bool unreported_said_ = false;    // that there are too many; guarded by mu_
  Clock::time_point next_purge_{};  // guarded by mu_
};

}  // namespace quire
