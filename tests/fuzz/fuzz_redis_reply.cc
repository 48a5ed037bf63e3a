// Replies of Redis: any bytes, cut anywhere, give the same replies or a refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/remote/redis_reply.h"

namespace {

std::string shown(const quire::RedisReply& r) {
  std::string out = std::to_string(static_cast<int>(r.kind)) + ":" + r.text + ":" +
                    std::to_string(r.integer) + "(";
  for (const auto& item : r.items) out += shown(item);
  return out + ")";
}

struct Seen {
  std::vector<std::string> replies;
  bool ok = true;
  bool operator==(const Seen&) const = default;
};

Seen run(std::string_view bytes, std::size_t step) {
  Seen seen;
  quire::RedisReplyReader reader;
  for (std::size_t at = 0; at < bytes.size() && seen.ok; at += step) {
    seen.ok = reader.feed(bytes.substr(at, step)).ok();
    while (seen.ok) {
      auto next = reader.next();
      seen.ok = next.ok();
      if (!seen.ok || !*next) break;
      seen.replies.push_back(shown(**next));
    }
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Seen whole = run(bytes, size + 1), cut = run(bytes, 1);
  if (whole != cut) std::abort();
  return 0;
}
