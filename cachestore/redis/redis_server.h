/// This file says where a server is that speaks the protocol of Redis, and how to log in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace quire
