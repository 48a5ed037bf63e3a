/// This file looks up what the store holds of a context, for planning.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cachestore/store.h"
#include "engine/record/kv_layout.h"

namespace quire {

/// What the store knows about one context.
struct ContextLookup {
  SegmentHandle segment;          ///< invalid for a miss
  std::vector<Tier> block_tiers;  ///< [num_blocks], the slowest tier of each block's values
};
using LookupContext = std::function<ContextLookup(const ContextKey& key, const KvLayout& layout)>;

/// Selects whether a lookup counts as a use of what it finds.
enum class LookupKind : std::uint8_t { kUse, kPeek };
/// Returns a lookup that asks the store for the tier of each block. It never waits for the disk.
LookupContext store_lookup(Store& store, LookupKind kind);

}  // namespace quire
