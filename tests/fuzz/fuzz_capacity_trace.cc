// Traces for `quire plan-capacity`: a question that is accepted must be the same when it is written
// and read again. Everything else must be refused, with the line in the message.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/capacity/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  quire::capacity::TraceParser parser;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(line.size() < text.size() ? line.size() + 1 : line.size());
    const auto request = parser.parse(line);
    if (!request.ok()) {
      if (!request.status().message().starts_with("line ")) std::abort();
      continue;
    }
    if (!*request) continue;
    auto again = quire::capacity::TraceParser().parse(quire::capacity::trace_json(**request));
    if (!again.ok() || !*again) std::abort();
    // Reading a decimal number may miss its last bit.
    if (std::abs((*again)->seconds - (*request)->seconds) > 1e-9 * (1 + (*request)->seconds))
      std::abort();
    (*again)->seconds = (*request)->seconds;
    if (!(**again == **request)) std::abort();
  }
  return 0;
}
