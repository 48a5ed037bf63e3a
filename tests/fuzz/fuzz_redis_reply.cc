// Replies of Redis: any bytes, cut anywhere, give the same replies or a refusal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/redis/redis_reply.h"
#include "tests/support/harness/cut_source.h"

namespace {

constexpr std::size_t kMostPlaced = 1u << 20;

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

/// The same from a stream; `place`: strings that are whole replies go to memory of this function.
Seen stream(std::string_view bytes, std::size_t step, bool place) {
  Seen seen;
  quire::RedisReplyStream replies;
  std::string placed;
  const auto read = quire::test::cut_source(bytes, step);
  const auto put = [&](std::size_t size) -> std::span<std::byte> {
    if (size > kMostPlaced) return {};
    placed.assign(size, '\0');
    return std::as_writable_bytes(std::span(placed));
  };
  while (seen.ok) {
    auto next = place ? replies.receive(read, put) : replies.receive(read);
    if (!next.ok()) {
      seen.ok = next.code() == quire::Code::kUnavailable;
      break;
    }
    if (!*next) continue;
    if ((*next)->placed) (*next)->text = placed;
    seen.replies.push_back(shown(**next));
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Seen whole = run(bytes, size + 1), cut = run(bytes, 1);
  if (whole != cut) std::abort();
  for (const bool place : {false, true})
    if (stream(bytes, size + 1, place) != stream(bytes, 1, place)) std::abort();
  return 0;
}
