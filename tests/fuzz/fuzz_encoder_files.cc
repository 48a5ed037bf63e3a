// Files of a text encoder's folder: any bytes give a tokenizer that works, or an error with a
// message; any text gives ids of the vocabulary.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/encoder/encoder_config.h"
#include "engine/encoder/wordpiece.h"

namespace {

/// Removes the bytes up to the next 0xFF from `rest` and returns them.
std::string take_part(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\xFF'), rest.size());
  std::string part(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 4 == 3) {
    const auto config = quire::parse_bert_config(rest);
    if (!config.ok() && config.status().message().empty()) __builtin_trap();
    if (config.ok() && config->hidden % config->heads != 0) __builtin_trap();
    return 0;
  }
  quire::WordPieceFiles files;
  (data[0] % 2 == 0 ? files.vocab_txt : files.tokenizer_json) = take_part(rest);
  if (data[0] % 4 == 2) files.tokenizer_config = take_part(rest);
  const auto words = quire::WordPiece::make(files);
  if (!words.ok()) {
    if (words.status().message().empty()) __builtin_trap();
    return 0;
  }
  for (const std::int32_t id : words->encode(rest)) {
    if (id < 0 || id >= words->vocab_size()) __builtin_trap();
  }
  for (const std::string& word : quire::split_bert_words(rest, words->rules())) {
    if (word.empty()) __builtin_trap();
  }
  return 0;
}
