/// Checks the share of a tier that pinned documents may hold.
#pragma once

#include "cachestore/store_admin.h"
#include "ingest/admission/admission.h"

namespace quire {

/// Returns kResourceExhausted if `more` lets pins hold more of a bounded tier than `ratio`
/// (cache.max_pinned_ratio). KV of pinned documents that is not there yet counts on disk by its
/// tokens. It may wait on disk.
Status check_pin_share(AdminStore& store, const EngineInfo& info, double ratio,
                       const PinBytes& more);

}  // namespace quire
