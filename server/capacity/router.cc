#include "server/capacity/router.h"

#include <algorithm>

#include "server/capacity/trace.h"

namespace quire::capacity {
namespace {

/// Points of a replica on the ring, as nginx has them for a server of weight 1.
constexpr std::uint64_t kPoints = 160;

}  // namespace

Router::Router(Routing routing, std::uint32_t replicas) : replicas_(replicas) {
  if (routing != Routing::kAffinity) return;
  for (std::uint64_t i = 0; i < replicas * kPoints; ++i)
    ring_.emplace_back(mix(mix(i)), static_cast<std::uint32_t>(i / kPoints));
  std::ranges::sort(ring_);
}

std::uint32_t Router::pick(std::uint64_t affinity) {
  if (affinity == 0 || ring_.empty()) {
    const std::uint32_t replica = next_;
    next_ = (next_ + 1) % replicas_;
    return replica;
  }
  const auto point = std::ranges::lower_bound(ring_, mix(affinity), {},
                                              [](const auto& p) { return p.first; });
  return (point == ring_.end() ? ring_.front() : *point).second;
}

}  // namespace quire::capacity
