// Replies to idempotency keys, as a stopped service saved them. Nothing may crash, and damaged
// bytes restore nothing. Restored replies are saved again in a form that can be restored.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/access/idempotency.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto clock = [] {
    return IdempotencyStore::Clock::time_point(std::chrono::hours(100'000));
  };
  IdempotencyStore store({}, clock);
  if (!store.restore(std::string_view(reinterpret_cast<const char*>(data), size), 1'000'000).ok()) {
    if (store.size() != 0) std::abort();
    return 0;
  }
  IdempotencyStore again({}, clock);
  if (!again.restore(store.save(1'000'000, SIZE_MAX), 1'000'000).ok() ||
      again.size() != store.size())
    std::abort();
  return 0;
}
