// Tokenizer files of any bytes give a tokenizer that works, or an error with a message.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

namespace {

/// Removes the bytes up to the next 0xFF from `rest` and returns them.
std::string take_part(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\xFF'), rest.size());
  std::string part(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

void use(const quire::Tokenizer& tokenizer) {
  constexpr std::string_view kText =
      "Hello  w\xC3\xB6rld <|x|> </s> \xE4\xBD\xA0 12345\n\n\xF0\x9F\xA6\x99 \xEF\xAC\x81";
  const auto encoding = tokenizer.encode_with_offsets(kText, quire::Special::kParse);
  if (!encoding.spans.empty() && encoding.spans.back().end != kText.size()) __builtin_trap();
  (void)tokenizer.decode(tokenizer.encode(kText), true);
  for (const std::int32_t id : tokenizer.encode(kText)) {
    if (id < 0 || id >= tokenizer.vocab_size()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  quire::TokenizerFiles files;
  switch (data[0] % 6) {
    case 0:
      files.tokenizer_model = std::string(rest);
      break;  // protobuf may hold any byte, so no second file follows
    case 1:
      files.tokenizer_model = take_part(rest);
      files.config = R"({"model_type": "llama"})";
      files.tokenizer_config = take_part(rest);
      break;
    case 2:
      files.tokenizer_json = take_part(rest);
      files.tokenizer_config = take_part(rest);
      break;
    case 3:
      files.vocab_json = take_part(rest);
      files.merges_txt = take_part(rest);
      files.tokenizer_config = take_part(rest);
      files.generation_config = take_part(rest);
      break;
    case 4:
      files.qwen_tiktoken = take_part(rest);
      files.special_tokens_map = take_part(rest);
      files.added_tokens = take_part(rest);
      break;
    case 5:
      files.tokenizer_model = std::string("\n") + take_part(rest);
      files.tokenizer_json = take_part(rest);
      files.tokenizer_config = take_part(rest);
      break;
  }
  auto tokenizer = quire::make_tokenizer(files);
  if (!tokenizer.ok()) {
    if (tokenizer.status().message().empty()) __builtin_trap();
    return 0;
  }
  use(**tokenizer);
  const std::shared_ptr<const quire::Tokenizer> shared = std::move(tokenizer).value();
  const auto format = quire::PromptFormat::parse(files.tokenizer_config.value_or(""), "", shared);
  if (format.ok()) (void)format->document("title", "text");
  return 0;
}
