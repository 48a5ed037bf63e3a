// Parses what the command line reads from a server: the events of a reply, and the address itself.
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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1,
                              std::min<std::size_t>(size - 1, 64 << 10));
  if (data[0] % 2 == 0) {
    if (events_of(text, text.size() + 1) != events_of(text, 1)) std::abort();
  } else if (const auto address = parse_server_url(std::string(text));
             address.ok() && (address->host.empty() || address->port.empty())) {
    std::abort();
  }
  return 0;
}
