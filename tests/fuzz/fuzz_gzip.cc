// Bodies with Content-Encoding: gzip: any bytes, cut anywhere, give the same text or a refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/http/gzip_reader.h"

namespace {

constexpr std::size_t kMostBytes = 1 << 20;

struct Seen {
  std::string text;
  bool ok = true, complete = false;
  bool operator==(const Seen&) const = default;
};

Seen run(std::string_view bytes, std::size_t step) {
  Seen seen;
  quire::GzipReader reader;
  bool stopped = false;
  for (std::size_t at = 0; at < bytes.size() && seen.ok && !stopped; at += step) {
    const auto status = reader.feed(bytes.substr(at, step), [&](std::string_view piece) {
      seen.text.append(piece.substr(0, kMostBytes - seen.text.size()));
      stopped = seen.text.size() == kMostBytes;
      return !stopped;
    });
    seen.ok = status.ok();
  }
  seen.complete = !stopped && reader.complete();
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Seen whole = run(bytes, size + 1), cut = run(bytes, 1);
  if (whole.ok != cut.ok) std::abort();
  if (whole.ok && !(whole == cut)) std::abort();
  return 0;
}
