/// Checks the share of a tier that pinned documents may hold.
#pragma once

#include "cachestore/store_admin.h"
#include "ingest/admission/pin_gate.h"

namespace quire {

/// Returns kResourceExhausted if `more` lets pins hold more of a bounded tier than `ratio`
/// (cache.max_pinned_ratio). It may wait on disk.
Status check_pin_share(AdminStore& store, double ratio, const PinBytes& more);

}  // namespace quire
