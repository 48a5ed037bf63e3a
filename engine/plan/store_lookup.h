/// What the store holds of a context, for planning.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cachestore/store.h"
#include "engine/record/kv_layout.h"

namespace quire {

/// What the store says about one context.
struct ContextLookup {
  SegmentHandle segment;          ///< invalid: a miss
  std::vector<Tier> block_tiers;  ///< [num_blocks], the slowest tier of each block's values
};
using LookupContext = std::function<ContextLookup(const ContextKey& key, const KvLayout& layout)>;

/// Whether a look at the store counts as a use of what it finds.
enum class LookupKind : std::uint8_t { kUse, kPeek };
/// Asks the store which tier each block is in. Never waits on disk.
LookupContext store_lookup(Store& store, LookupKind kind);

}  // namespace quire
