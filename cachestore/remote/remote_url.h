/// This file reads the setting `remote.url`: which shared servers keep KV besides this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/redis/redis_server.h"

namespace quire {

/// One bucket of an object store that speaks the protocol of S3.
struct S3Bucket {
  std::string endpoint;  ///< scheme, host and port, without a slash at the end
  std::string bucket, prefix;
  std::string region = "us-east-1";
};

/// The tiers in the order in which they are read. A kind that is not there is empty.
struct RemoteUrl {
  std::vector<RedisServer> redis;  ///< at most one
  std::vector<S3Bucket> s3;        ///< at most one
};

/// Parses one or two addresses separated by spaces:
///   redis://[user:password@]host[:port][,host[:port]...][?ca=FILE&cert=FILE&key=FILE]
///   redis+sentinel://[user:password@]host[:port][,host...]/master[?sentinel_password=TEXT...]
///   rediss://... rediss+sentinel://...   the same over TLS
///   s3://bucket[/prefix][?endpoint=http://host:port&region=NAME]
/// Percent escapes are decoded in user and password. Errors: kInvalidArgument, field `remote.url`;
/// the message never shows a password.
Result<RemoteUrl> parse_remote_url(std::string_view url);

}  // namespace quire
