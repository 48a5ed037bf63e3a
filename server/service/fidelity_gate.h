/// What `auto` may do with the loaded model: the certificates of its store, and what shadow checks
/// say about them since.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "fidelity/certificate.h"

namespace quire {

/// Per strategy:  trusted --(mean agreement of the last kWindow checks, at least kMinChecks of
/// them, under the limit)--> fallback
///                fallback --(at least kMinChecks checks since, their mean at or above the
///                limit)--> trusted
/// In fallback `auto` stays exact; checks then come from requests that name the strategy
/// themselves. A restart begins with trust. Threads: every method may be called concurrently.
class FidelityGate {
 public:
  static constexpr std::size_t kWindow = 32, kMinChecks = 8;

  explicit FidelityGate(double min_agreement) : min_agreement_(min_agreement) {}

  /// Before the first request. `max_drop`: certificates judged by a wider limit do not count.
  void set_certificates(std::vector<Certificate> certificates, std::string fingerprint_hex,
                        double max_drop);

  /// What `auto` may use now. With none, `note` says why if a certificate alone would have allowed
  /// one.
  struct Verdict {
    std::optional<std::string> strategy;
    std::string note;
  };
  Verdict verdict() const;

  /// One shadow check: the share of positions at which recompute says the same. Returns true when
  /// the strategy's state changed.
  bool record(const std::string& strategy, double agreement);
  enum class Dropped : std::uint8_t { kBusy, kFailed };
  void count_dropped(Dropped why);
  bool in_fallback() const;

  /// For GET /v1/info.
  boost::json::object info(double shadow_ratio) const;

 private:
  struct State {
    std::deque<double> recent;  ///< since the last change of state
    bool fallback = false;
    double agreement_at_fall = 0;
    std::int64_t checks = 0;
  };
  static double mean(const std::deque<double>& values);

  const double min_agreement_;
  mutable std::mutex mu_;
  std::vector<Certificate> certificates_;  // guarded by mu_
  std::vector<Certificate> usable_;        // those of strategies this build has; guarded by mu_
  std::string fingerprint_hex_;            // guarded by mu_
  double max_drop_ = kDefaultMaxDrop;      // guarded by mu_
  std::map<std::string, State> states_;    // guarded by mu_
  std::int64_t busy_ = 0, failed_ = 0;     // guarded by mu_
};

}  // namespace quire
