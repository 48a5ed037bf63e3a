/// The share of a tier that pinned documents may hold.
#pragma once

#include "cachestore/store_admin.h"
#include "ingest/pin_gate.h"

namespace quire {

/// kResourceExhausted: with `more`, pins would hold more of a bounded tier than `ratio`
/// (cache.max_pinned_ratio). May wait on disk.
Status check_pin_share(AdminStore& store, double ratio, const PinBytes& more);

}  // namespace quire
