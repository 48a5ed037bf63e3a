/// Which replica a load balancer gives a question to.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace quire::capacity {

enum class Routing : std::uint8_t {
  kRoundRobin,  ///< one replica after the other
  kAffinity,    ///< a consistent hash of X-Quire-Affinity, as in configs/nginx.conf and envoy.yaml
};

/// Threads: not shared.
class Router {
 public:
  Router(Routing routing, std::uint32_t replicas);
  /// `affinity` 0 names none; such questions go round.
  std::uint32_t pick(std::uint64_t affinity);

 private:
  const std::uint32_t replicas_;
  std::uint32_t next_ = 0;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ring_;  ///< empty: all questions go round
};

}  // namespace quire::capacity
