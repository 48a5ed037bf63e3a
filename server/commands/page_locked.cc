#include "server/commands/page_locked.h"

#include <string>
#include <utility>

namespace quire {
namespace {

bool is_required(const Config& config) { return config.cache.page_locked == "on"; }

Status refused(const std::string& why) {
  return Status::invalid("cache.page_locked",
                         "cache.page_locked is on, but " + why + "; use auto, or off");
}

}  // namespace

Status check_page_locked(const Config& config, bool gpu_computes) {
  if (!is_required(config)) return {};
  if (!gpu_computes) return refused("the CPU computes");
  return config.cache.dram_bytes > 0 ? Status() : refused("cache.dram_bytes is 0");
}

Result<std::shared_ptr<PinnedValues>> page_locked_values(const Config& config,
                                                         std::shared_ptr<cuda::DeviceOps> ops) {
  QUIRE_RETURN_IF_ERROR(check_page_locked(config, ops != nullptr));
  if (config.cache.page_locked == "off" || !ops || config.cache.dram_bytes == 0)
    return std::shared_ptr<PinnedValues>();
  auto values = std::make_shared<PinnedValues>(std::move(ops), config.cache.dram_bytes);
  // Without any memory it counts what it has no room for.
  if (const Status pinned = values->pin_first(); !pinned.ok() && is_required(config))
    return refused("no memory can be locked: " + pinned.to_string());
  return values;
}

}  // namespace quire
