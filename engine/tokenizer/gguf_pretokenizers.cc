#include "engine/tokenizer/gguf_pretokenizers.h"

#include <algorithm>
#include <iterator>

#include "engine/tokenizer/pretokenizer.h"

namespace quire::tokenizer_internal {
namespace {

// Patterns as tokenizer.json files publish them. Some are spelled in parts here, for their length.
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kLineEnds = R"([\r\n])";
constexpr std::string_view kFalconMarks = R"([\p{P}\$\+<=>\^~\|`]+)";
constexpr std::string_view kDefaultMarks = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kHan = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view kKana = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
/// Letters that have a case, as of the Unicode version of its day.
constexpr std::string_view kDeepseekLetters =
    R"(\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A})"
    R"(\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556})"
    R"(\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF})"
    R"(\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D})"
    R"(\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4})"
    R"(\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F})"
    R"(\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4})"
    R"(\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F})"
    R"(\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17})"
    R"(\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3})"
    R"(\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF})"
    R"(\x{1E900}-\x{1E943}]+)";
constexpr std::string_view kDeepseekMarks =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr std::string_view kDeepseekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1})"
    R"(| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N})"
                                      R"(| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{0964}\x{06D4}\x{060C})]+)";

constexpr unsigned kNfc = 1, kWholeWords = 2, kAddBos = 4;

struct Row {
  std::string_view name;
  std::vector<std::string_view> patterns;
  unsigned flags = 0;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> table = [] {
    const std::vector<std::string_view> gpt2 = {kGpt2Pattern}, llama3 = {kLlama3Pattern},
                                        qwen = {kQwenPattern};
    const std::vector<std::string_view> digits = {kDigit, kGpt2Pattern};
    const unsigned llama = kWholeWords | kAddBos;
    std::vector<Row> out = {
        {"default", {kDefaultMarks, kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
        {"llama-bpe", llama3, llama},
        {"llama3", llama3, llama},
        {"llama-v3", llama3, llama},
        {"falcon3", llama3, llama},
        {"pixtral", llama3, llama},
        {"lfm2", llama3, llama},
        {"dbrx", llama3},
        {"smaug-bpe", llama3},
        {"chatglm-bpe", llama3},
        {"glm4", llama3},
        {"gpt-2", gpt2},
        {"phi-2", gpt2},
        {"jina-es", gpt2},
        {"jina-de", gpt2},
        {"jina-v1-en", gpt2},
        {"jina-v2-es", gpt2},
        {"jina-v2-de", gpt2},
        {"jina-v2-code", gpt2},
        {"roberta-bpe", gpt2},
        {"gigachat", gpt2},
        {"exaone4", gpt2},
        {"trillion", gpt2},
        {"jais", gpt2},
        {"mpt", gpt2, kNfc},
        {"olmo", gpt2, kNfc},
        {"smollm", digits},
        {"starcoder", digits},
        {"refact", digits},
        {"codeshell", digits},
        {"exaone", digits},
        {"minerva-7b", digits},
        {"command-r", digits, kNfc},
        {"qwen2", qwen, kNfc},
        {"deepseek-r1-qwen", qwen},
        {"stablelm2", qwen},
        {"hunyuan", qwen},
        {"megrez", qwen},
        {"deepseek-llm",
         {kLineEnds, kDeepseekLetters, kDeepseekMarks, R"(\s+$)", kHan, R"(\p{N}+)"}},
        {"deepseek-coder", {kLineEnds, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kHan, kDigit}},
        {"deepseek-v3", {kThreeDigits, kKana, kDeepseekV3}},
        {"hunyuan-dense", {kThreeDigits, kKana, kDeepseekV3}},
        {"falcon", {kFalconMarks, kGpt2Pattern, "[0-9][0-9][0-9]"}},
        {"tekken", {kTekken}, llama},
        {"gpt-4o", {kGpt4o}},
        {"llama4", {kGpt4o}},
        {"superbpe", {R"(\p{N}+)", R"((?=(\d{3})+(?!\d)))"}},
        {"seed-coder", {kSeedCoder}},
        {"bailingmoe", {kBailing}},
        {"bloom", {kBloom}},
        {"poro-chat", {kBloom}},
        {"gpt3-finnish", {kBloom}},
        {"viking", {kBloom, kDigit}},
    };
    return out;
  }();
  return table;
}

}  // namespace

std::optional<NamedPretokenizer> named_pretokenizer(std::string_view name) {
  const std::vector<Row>& all = rows();
  const auto row = std::find_if(all.begin(), all.end(),
                                [&](const Row& r) { return r.name == name; });
  if (row == all.end()) return std::nullopt;
  NamedPretokenizer out;
  for (const std::string_view pattern : row->patterns) out.patterns.emplace_back(pattern);
  out.nfc = (row->flags & kNfc) != 0;
  out.whole_words = (row->flags & kWholeWords) != 0;
  out.add_bos = (row->flags & kAddBos) != 0;
  return out;
}

std::string pretokenizer_names() {
  std::vector<std::string_view> names;
  for (const Row& row : rows()) names.push_back(row.name);
  std::sort(names.begin(), names.end());
  std::string out;
  for (const std::string_view name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace quire::tokenizer_internal
