/// GET over HTTPS: the one place that knows libcurl.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire::hub {

struct TransferRequest {
  std::string url;
  std::vector<std::string> headers;  ///< "Name: value", sent to every host on the way
  std::string
      token;  ///< sent as a bearer token to the host, port and scheme of `url` alone; empty: none
  /// Body bytes of a 2xx reply, as they arrive. Not OK: stop, and that is the result.
  std::function<Status(std::string_view)> on_body;
  /// Once before the first byte of a 2xx body.
  std::function<Status(const struct TransferReply&)> on_headers;
};

struct TransferReply {
  int status = 0;
  std::string url;                             ///< the last one, after redirects
  std::map<std::string, std::string> headers;  ///< of the last reply, names in lower case
  std::map<std::string, std::string>
      first_headers;  ///< of the reply to the first request, names in lower case
  std::string
      body;  ///< of replies that are not 2xx, at most 4 KiB; of others where on_body is empty

  std::string header(const std::string& name) const;
};

/// Follows at most ten redirects, never from https to http. The certificate is checked against the
/// system's authorities, or those in SSL_CERT_FILE; proxies are those of https_proxy and no_proxy.
/// A status of 400 and above is a reply like others.
///
/// Errors: kUnavailable (no connection: field "network"; or it broke: worth another try), kIo (TLS
/// or a malformed reply; another try will not help), and whatever on_body or on_headers returned.
Result<TransferReply> transfer(const TransferRequest& request);

/// Text as a part of a URL's path; '/' stays.
std::string url_path(std::string_view text);

}  // namespace quire::hub
