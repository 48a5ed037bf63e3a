// What a child process writes is never trusted: the parent accepts only whole documents.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/utf8.h"
#include "readers/result_codec.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  ReaderLimits limits;
  limits.text_bytes = 1u << 20;
  limits.documents = 100;
  (void)decode_format(bytes);
  const auto result = decode_result(bytes, limits);
  if (!result.ok()) {
    if (result.status().message().empty()) std::abort();
    return 0;
  }
  if (result->size() > limits.documents) std::abort();
  for (const ReadDocument& d : *result) {
    if (tokenizer_internal::valid_utf8_prefix(d.text) != d.text.size()) std::abort();
    std::uint64_t last = 0;
    for (const TextMark& mark : d.marks) {
      if (mark.offset < last || mark.offset > d.text.size()) std::abort();
      last = mark.offset;
    }
  }
  return 0;
}
