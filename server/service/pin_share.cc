#include "server/service/pin_share.h"

#include <string>

namespace quire {

Status check_pin_share(AdminStore& store, const EngineInfo& info, double ratio,
                       const PinBytes& more) {
  const StoreStats now = store.stats();
  const StoreAdminStats pins = store.admin_stats();
  const auto over = [&](const TierStats& tier, std::uint64_t pinned, std::uint64_t added) {
    return tier.capacity_bytes > 0 &&
           static_cast<double>(pinned + added) > ratio * static_cast<double>(tier.capacity_bytes);
  };
  const std::uint64_t to_come = kv_bytes(info, pins.pinned_missing_tokens);
  const bool disk = over(now.disk, pins.disk.pinned_bytes + to_come, more.disk),
             dram = more.dram > 0 && over(now.dram, pins.dram.pinned_bytes, more.dram);
  if (!disk && !dram) return {};
  return Status::exhausted(std::string("pins would hold more of the tier ") +
                           (disk ? "disk" : "dram") +
                           " than cache.max_pinned_ratio allows; unpin others or raise it");
}

}  // namespace quire
