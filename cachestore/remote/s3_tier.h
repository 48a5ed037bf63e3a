/// This file opens a shared tier in a bucket of S3, or of anything that speaks its protocol.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "cachestore/remote/remote_tier.h"
#include "cachestore/remote/remote_url.h"

namespace quire {

/// Returns a tier that keeps each segment in two objects, `PREFIX/quire/1/NAME/values` and
/// `.../record`. Values lie one after another and are read by byte ranges, several at once. More
/// than twice `part_bytes` of them are written in parts of so many bytes, several at once; S3 wants
/// parts of at least 5 MiB. The credentials are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if it
/// is set, AWS_SESSION_TOKEN of the environment. Nothing is deleted for its age: set a lifecycle
/// rule for the bucket. Errors: kInvalidArgument (a credential is missing).
Result<std::unique_ptr<RemoteTier>> make_s3_tier(S3Bucket bucket,
                                                 std::uint64_t part_bytes = 16u << 20);

}  // namespace quire
