// safetensors headers and shard indexes of any bytes are refused or parsed, and never read past
// their end.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto entries = parse_safetensors_header(bytes, size); entries.ok()) {
    // The tensors of an accepted header cover the rest of the file without gaps.
    std::uint64_t at = entries->empty() ? 0 : entries->front().begin;
    for (const TensorEntry& e : *entries) {
      if (e.begin != at || e.end < e.begin || e.end > size) std::abort();
      at = e.end;
    }
  }
  // Prefix the same text with a correct length, so that the fuzzer need not find it.
  if (size > 0) {
    const std::size_t header = size - data[0] % size;
    std::string framed(8, '\0');
    for (int i = 0; i < 8; ++i)
      framed[static_cast<std::size_t>(i)] = static_cast<char>(header >> (8 * i));
    framed.append(reinterpret_cast<const char*>(data), size);
    (void)parse_safetensors_header(std::as_bytes(std::span(framed)), framed.size());
  }
  if (const auto index = parse_safetensors_index({reinterpret_cast<const char*>(data), size});
      index.ok()) {
    for (const auto& [tensor, file] : *index) {
      if (file.find('/') != std::string::npos || file.starts_with(".")) std::abort();
    }
  }
  return 0;
}
