// Replies of another service to texts to embed: as many vectors of length 1 and one size, or an
// error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/hub/remote_embedder.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t count = 1 + data[0] % 4;
  const auto found = quire::hub::parse_embeddings_reply(
      {reinterpret_cast<const char*>(data) + 1, size - 1}, count);
  if (!found.ok()) return 0;
  if (found->size() != count) std::abort();
  for (const auto& vector : *found) {
    double squares = 0;
    for (const float x : vector) squares += double{x} * x;
    if (vector.size() != found->front().size() || !(std::abs(squares - 1) < 1e-3)) std::abort();
  }
  return 0;
}
