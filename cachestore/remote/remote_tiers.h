/// This file opens the shared tiers that the settings name.
#pragma once

#include "cachestore/remote/remote_cache.h"
#include "cachestore/remote/remote_options.h"

namespace quire {

/// Returns the tiers in the order of reading, Redis before S3; none for an empty address. Nothing
/// is asked of them yet. Errors: those of parse_remote_url(); kInvalidArgument (a PEM file cannot
/// be read, no credentials for S3).
Result<RemoteCache::Tiers> open_remote_tiers(const RemoteOptions& options);

}  // namespace quire
