/// This file reads the setting `remote.url`: which shared servers keep KV besides this machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

struct RemoteHost {
  std::string name;  ///< host name or address, without brackets
  std::uint16_t port = 0;
  friend auto operator<=>(const RemoteHost&, const RemoteHost&) = default;
};

/// One server or cluster that speaks the protocol of Redis.
struct RedisServer {
  /// Of one server, some of a cluster's, or sentinels; never empty
  std::vector<RemoteHost> hosts;
  std::string user, password;  ///< empty: not sent
  /// The name by which the hosts, which are sentinels then, know the server; and the login there.
  std::string sentinel_master, sentinel_user, sentinel_password;
  bool tls = false;
  /// PEM files: whom to trust (empty: what the system trusts), and what to show the server.
  std::string ca_file, certificate_file, key_file;
};

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
