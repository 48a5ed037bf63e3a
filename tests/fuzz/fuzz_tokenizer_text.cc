// For texts of any bytes, ids, offsets, decoding and streaming agree with each other.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"

namespace {

#define QUIRE_FUZZ_REQUIRE(condition)   \
  do {                                  \
    if (!(condition)) __builtin_trap(); \
  } while (0)

/// Returns the character that represents a byte in byte-level vocabularies.
std::string byte_level_char(int byte, int& next) {
  const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         byte >= 0xAE;
  const int cp = printable ? byte : next++;
  if (cp == '"' || cp == '\\') return {'\\', static_cast<char>(cp)};
  if (cp < 0x80) return std::string(1, static_cast<char>(cp));
  return {static_cast<char>(0xC0 | cp >> 6), static_cast<char>(0x80 | (cp & 0x3F))};
}

std::unique_ptr<quire::Tokenizer> byte_level() {
  quire::TokenizerFiles files;
  std::string vocab = "{";
  int next = 256;
  for (int byte = 0; byte < 256; ++byte)
    vocab += "\"" + byte_level_char(byte, next) + "\":" + std::to_string(byte) + ",";
  files.vocab_json = vocab + R"("he":256,"ll":257,"aa":258,"aaaa":259,"\u0120\u0120":260})";
  files.merges_txt = "h e\nl l\na a\naa aa\n\xC4\xA0 \xC4\xA0\n";
  files.tokenizer_config = R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
    "261": {"content": "<|end|>", "special": true}, "262": {"content": "   ", "special": false}}})";
  return std::move(quire::make_tokenizer(files)).value();
}

std::unique_ptr<quire::Tokenizer> byte_fallback() {
  std::string vocab = R"("<unk>":0,"<s>":1)";
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (std::size_t byte = 0; byte < 256; ++byte) {
    vocab += std::string(",\"<0x") + kHex[byte >> 4] + kHex[byte & 15] +
             ">\":" + std::to_string(2 + byte);
  }
  vocab += R"(,"▁":258,"a":259,"▁a":260,"é":261,"aa":262,"▁▁":263)";
  quire::TokenizerFiles files;
  files.tokenizer_json =
      R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}, "added_tokens": [{"id": 1, )"
      R"("content": "<s>", "special": true},
    {"id": 0, "content": "<unk>", "special": true}], "model": {"type": "BPE", "byte_fallback": )"
      R"(true, "unk_token": "<unk>",
    "vocab": {)" +
      vocab + R"(}, "merges": ["▁ a", "a a", "▁ ▁"]}})";
  return std::move(quire::make_tokenizer(files)).value();
}

std::vector<std::unique_ptr<quire::Tokenizer>> make_tokenizers() {
  std::vector<std::unique_ptr<quire::Tokenizer>> all;
  all.push_back(byte_level());
  all.push_back(byte_fallback());
  auto demo = quire::load_tokenizer(QUIRE_SOURCE_DIR "/models/demo");
  if (demo.ok()) all.push_back(std::move(demo).value());
  return all;
}

void check(const quire::Tokenizer& t, std::string_view text, quire::Special special,
           quire::Start start) {
  const auto ids = t.encode(text, special, start);
  const auto encoding = t.encode_with_offsets(text, special, start);
  QUIRE_FUZZ_REQUIRE(ids == encoding.ids && ids.size() == encoding.spans.size());
  std::uint32_t at = 0;
  for (const quire::TokenSpan& span : encoding.spans) {
    QUIRE_FUZZ_REQUIRE(span.begin == at && span.end >= at);
    at = span.end;
  }
  QUIRE_FUZZ_REQUIRE(ids.empty() || at == text.size());
  quire::StreamDecoder stream(t);
  std::string streamed;
  for (const std::int32_t id : ids) {
    QUIRE_FUZZ_REQUIRE(id >= 0 && id < t.vocab_size());
    QUIRE_FUZZ_REQUIRE(special == quire::Special::kParse || !t.is_special(id) ||
                       t.token_bytes(id) == "<unk>");
    streamed += stream.push(id);
  }
  streamed += stream.finish();
  QUIRE_FUZZ_REQUIRE(streamed == t.decode(ids));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizers = make_tokenizers();
  if (size < 1) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto special = (data[0] & 1) != 0 ? quire::Special::kParse : quire::Special::kNone;
  const auto start = (data[0] & 2) != 0 ? quire::Start::kMiddle : quire::Start::kText;
  for (const auto& tokenizer : tokenizers) check(*tokenizer, text, special, start);
  // Decoding the same bytes as ids never fails and always gives valid UTF-8.
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2) {
    ids.push_back(static_cast<unsigned char>(text[i]) | static_cast<unsigned char>(text[i + 1])
                                                            << 8);
  }
  for (const auto& tokenizer : tokenizers) {
    const std::string decoded = tokenizer->decode(ids, true);
    quire::Utf8Stream utf8;
    std::string checked;
    utf8.feed(decoded, checked);
    utf8.flush(checked);
    QUIRE_FUZZ_REQUIRE(checked == decoded);
  }
  return 0;
}
