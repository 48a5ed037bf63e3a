/// Fetches one file from a web address, within rules that keep a service from being used against
/// the network that it stands in.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::hub {

struct FetchRules {
  /// Hosts that may be asked, also by redirects: "example.org", "*.example.org" (what is below it)
  /// or "*". Only ports 80 and 443, unless a pattern ends with a port: "example.org:8080".
  std::vector<std::string> hosts;
  /// Addresses that are not of the public internet (loopback, private, link-local, ...) are
  /// allowed. They are checked at the connection itself, so no name can lead past it. While they
  /// are forbidden, no proxy is used, because it would resolve the name.
  bool private_addresses = false;
  std::uint64_t max_bytes = std::uint64_t{256} << 20;
  std::int32_t seconds = 120;  ///< for everything
};

struct FetchedFile {
  std::string bytes;
  std::string name;  ///< of the file: the last part of its path, or its host
  std::string path;  ///< host, path and query, from which an id can be made
  std::string url;   ///< after redirects
};

/// Returns whether the rules allow this host and port.
bool host_allowed(std::string_view host, std::string_view port,
                  std::span<const std::string> patterns);
/// Returns whether an IPv4 or IPv6 address belongs to the public internet.
bool is_public_address(const sockaddr* address);

/// Returns the file. Errors, each naming the address: kInvalidArgument (no http or https address,
/// or one with a user name), kFailedPrecondition (the rules forbid it), kNotFound (404 and 410),
/// kResourceExhausted (too large), kUnavailable (no connection, or too slow), kIo (TLS, or the host
/// refuses).
Result<FetchedFile> fetch_file(const std::string& url, const FetchRules& rules);

}  // namespace quire::hub
