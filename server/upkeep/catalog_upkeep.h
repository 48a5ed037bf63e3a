/// Keeps up to date what a service has in common with the other replicas of a shared catalog:
/// replies to Idempotency-Keys and certificates.
#pragma once

#include <chrono>
#include <memory>

namespace quire {

struct Services;

/// Threads: start() once. The work is done by the service's workers.
class CatalogUpkeep : public std::enable_shared_from_this<CatalogUpkeep> {
 public:
  /// `services` outlives its timers and workers, which have to stop before the store ends.
  explicit CatalogUpkeep(Services& services) : services_(services) {}
  /// Works every second from now on, until the timers of the service stop.
  void start();

 private:
  void run();
  void later();
  /// Takes certificates that another replica has measured.
  void read_certificates();

  Services& services_;
  std::chrono::steady_clock::time_point next_certificates_{};  // of the run at work
  bool failed_ = false;                                        // of the run at work
};

}  // namespace quire
