/// This file opens a shared tier in Redis, or in anything that speaks its protocol.
#pragma once

#include <cstdint>
#include <memory>

#include "cachestore/remote/remote_tier.h"
#include "cachestore/remote/remote_url.h"

namespace quire {

/// Returns a tier that keeps each segment in one hash: field `r` is the record, field 0, 1, ... the
/// value at that position. A hash lies in one slot, is evicted whole and expires whole, after
/// `ttl_seconds` (0: never). The account of a tenant is a sorted set of its segments by the time
/// when they were counted, and a hash of their bytes, whose field `*` is the sum. It connects at
/// the first use.
std::unique_ptr<RemoteTier> make_redis_tier(RedisServer server, std::int64_t ttl_seconds);

}  // namespace quire
