// Vocabularies in GGUF files of any bytes are refused or give a tokenizer with valid ids and
// offsets.
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "engine/gguf/gguf.h"
#include "engine/tokenizer/gguf_vocab.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const auto header = parse_gguf({reinterpret_cast<const std::byte*>(data), size});
  if (!header.ok()) return 0;
  const auto tokenizer = tokenizer_internal::make_gguf_tokenizer(header->metadata);
  if (!tokenizer.ok()) return 0;
  const std::string text = "It's 123 <|end|> he\n\x04\xFF caf\xC3\xA9";
  for (const Special special : {Special::kNone, Special::kParse}) {
    const Encoding encoding = (*tokenizer)->encode_with_offsets(text, special);
    std::uint32_t at = 0;
    for (std::size_t i = 0; i < encoding.ids.size(); ++i) {
      if (encoding.ids[i] < 0 || encoding.ids[i] >= (*tokenizer)->vocab_size()) std::abort();
      if (encoding.spans[i].begin != at || encoding.spans[i].end < at) std::abort();
      at = encoding.spans[i].end;
    }
    if (!encoding.ids.empty() && at != text.size()) std::abort();
    (void)(*tokenizer)->decode(encoding.ids, true);
  }
  return 0;
}
