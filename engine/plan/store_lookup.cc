#include "engine/plan/store_lookup.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace quire {

LookupContext store_lookup(Store& store, LookupKind kind) {
  return [&store, kind](const ContextKey& key, const KvLayout& layout) {
    ContextLookup found;
    std::optional<SegmentHandle> segment = kind == LookupKind::kUse ? store.find_segment(key)
                                                                    : store.peek_segment(key);
    if (!segment) return found;
    found.segment = std::move(*segment);
    if (!layout.fits(found.segment->layout)) return found;
    for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
      Tier slowest = Tier::kNone;
      for (std::int32_t g = 0; g < layout.num_groups(); ++g) {
        slowest = std::max(slowest, store.tier_of(found.segment, static_cast<std::uint32_t>(b),
                                                  static_cast<std::uint32_t>(g)));
      }
      found.block_tiers.push_back(slowest);
    }
    return found;
  };
}

}  // namespace quire
