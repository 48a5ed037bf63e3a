// Parses what the command line reads from a server: a reply, its events, and the address itself.
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/http_client.h"

namespace {

using namespace quire;  // NOLINT
using Events = std::vector<std::pair<std::string, std::string>>;

Events events_of(std::string_view text, std::size_t step) {
  SseReader reader;
  Events events;
  for (std::size_t at = 0; at < text.size(); at += step) {
    reader.feed(text.substr(at, step), [&](const std::string& name, const std::string& data) {
      events.emplace_back(name, data);
      return true;
    });
  }
  return events;
}

/// Returns the reply that `bytes` and then the end of the connection form.
Result<HttpResponse> reply_of(std::string_view bytes, const std::string& method) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  while (!bytes.empty()) {  // is far less than a socket buffers
    const auto n = ::write(ends[1], bytes.data(), bytes.size());
    if (n <= 0) std::abort();
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  ::close(ends[1]);
  auto reply = read_reply(ends[0], ServerAddress{}, method);
  ::close(ends[0]);
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1,
                              std::min<std::size_t>(size - 1, 64 << 10));
  switch (data[0] % 3) {
    case 0: {
      const auto reply = reply_of(text, data[0] % 2 != 0 ? "HEAD" : "GET");
      if (reply.ok() ? reply->status < 200 : reply.status().message().empty()) std::abort();
      break;
    }
    case 1:
      if (events_of(text, text.size() + 1) != events_of(text, 1)) std::abort();
      break;
    default:
      if (const auto address = parse_server_url(std::string(text));
          address.ok() && (address->host.empty() || address->port.empty()))
        std::abort();
  }
  return 0;
}
