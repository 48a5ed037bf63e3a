/// GET and POST over HTTPS, by libcurl, for the hub and for addresses that users name.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire::hub {

struct UrlParts {
  std::string scheme, host, port;  ///< in small letters; the port also where it is the usual one
  std::string path, query;         ///< as they stand in the URL; the path begins with '/'
  bool has_user = false;
};
/// Errors: kInvalidArgument with field "url" (no http or https address).
Result<UrlParts> split_url(const std::string& url);

struct TransferRequest {
  std::string url;
  std::vector<std::string> headers;  ///< "Name: value", sent to every host along the redirects
  std::string
      token;  ///< bearer token, sent only to the host, port and scheme of `url`; empty: none
  std::optional<std::string> post;     ///< body to POST; none: GET
  std::chrono::milliseconds limit{0};  ///< of the whole transfer; 0: none
  std::stop_token stop;                ///< ends the transfer with kUnavailable
  /// Receives body bytes of a 2xx reply as they arrive. A status other than OK stops the transfer
  /// and becomes its result.
  std::function<Status(std::string_view)> on_body;
  /// Asked for the URL and every redirect; a status other than OK ends the transfer. Empty: all.
  std::function<Status(const UrlParts&)> allow_url;
  /// Asked for the address of every connection. While it is set, no proxy is used. Empty: all.
  std::function<bool(const sockaddr*)> allow_address;
  /// Called once, before the first byte of a 2xx body.
  std::function<Status(const struct TransferReply&)> on_headers;
};

struct TransferReply {
  int status = 0;
  std::string url;                             ///< the last URL, after redirects
  std::map<std::string, std::string> headers;  ///< headers of the last reply, names in lower case
  std::map<std::string, std::string>
      first_headers;  ///< headers of the reply to the first request, names in lower case
  /// Body of a reply that is not 2xx, at most 4 KiB; of a 2xx reply only if on_body is empty.
  std::string body;

  std::string header(const std::string& name) const;
};

/// Sends the request. A GET follows at most ten redirects, never from https to http; a POST follows
/// none. The certificate is checked against the system's authorities, or those in SSL_CERT_FILE;
/// proxies are those of https_proxy and no_proxy. A status of 400 and above is not an error.
///
/// Errors: kUnavailable (no connection: field "network"; or it broke: worth a retry), kIo (TLS or a
/// malformed reply; a retry will not help), and the status that on_body or on_headers returned.
Result<TransferReply> transfer(const TransferRequest& request);

/// Escapes text as part of a URL's path; '/' is kept.
std::string url_path(std::string_view text);

}  // namespace quire::hub
