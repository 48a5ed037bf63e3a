// Request parsing: any bytes, cut anywhere, give the same request or the same refusal.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "server/access/hosts.h"
#include "server/http/gzip_writer.h"
#include "server/http/request_parser.h"

using namespace quire;

namespace {

struct Seen {
  int error = 0;
  bool head = false, done = false;
  std::string method, target, body;
  bool operator==(const Seen&) const = default;
};

Seen run(std::string_view text, std::size_t step) {
  RequestParser parser(ParserLimits{4096});
  Seen seen;
  std::string buffer;
  std::size_t at = 0;
  while (!parser.error() && !parser.done()) {
    const std::size_t used = parser.feed(buffer, seen.body);
    if (used > buffer.size()) std::abort();
    buffer.erase(0, used);
    if (parser.error() || parser.done()) break;
    if (used > 0 && !buffer.empty()) continue;
    if (at == text.size()) break;
    const std::size_t n = std::min(step, text.size() - at);
    buffer += text.substr(at, n);
    at += n;
  }
  seen.error = parser.error() ? parser.error()->http_status : 0;
  seen.head = parser.head_done();
  seen.done = parser.done();
  if (seen.head) {
    seen.method = parser.head().method;
    seen.target = parser.head().target;
    (void)parser.head().media_type();
    (void)takes_gzip(parser.head().headers);
    (void)header_parameter(parser.head().headers.get("content-type"), "boundary");
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const Seen whole = run(text, size + 1), cut = run(text, 1);
  // A refusal may have seen more or fewer body bytes, but a whole request must be the same. At the
  // limit of the head the result depends on how many bytes are parsed at once.
  if (whole.error == 431 || cut.error == 431) return 0;
  if (whole.done != cut.done) std::abort();
  if (whole.done && !(whole == cut)) std::abort();
  HttpRequest request;
  (void)parse_target(text, request);
  // A name is its own name: without port, dot and upper case nothing is left to take off.
  const std::string host = host_name(text);
  if (host_allowed(text, "127.0.0.1", {}) && !host_allowed(host, "127.0.0.1", {})) std::abort();
  return 0;
}
