// GGUF files of any bytes are refused or parsed, and never read past their end.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "engine/gguf/gguf.h"

namespace {

void read(std::span<const std::byte> bytes) {
  using namespace quire;
  const auto header = parse_gguf(bytes);
  if (!header.ok()) return;
  for (const GgufTensor& t : header->tensors) {
    // An accepted tensor lies in the file and has the size of its shape.
    if (t.begin > t.end || t.end > bytes.size()) std::abort();
    std::int64_t elements = 1;
    for (const std::int64_t dim : t.shape) elements *= dim;
    if (elements / t.type.weights * t.type.bytes != static_cast<std::int64_t>(t.end - t.begin)) {
      std::abort();
    }
  }
  GgufFields in(header->metadata);
  for (const auto& [key, value] : header->metadata) {
    (void)in.integer(key, 0, 100, 0);
    (void)in.text(key);
    (void)in.array(key);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read({reinterpret_cast<const std::byte*>(data), size});
  // Prefix the same bytes with a valid beginning (one key, one tensor), so that the fuzzer need not
  // find it.
  std::string framed("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 24);
  framed.append(reinterpret_cast<const char*>(data), size);
  read(std::as_bytes(std::span(framed)));
  return 0;
}
