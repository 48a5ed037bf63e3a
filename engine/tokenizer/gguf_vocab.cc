#include "engine/tokenizer/gguf_vocab.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <set>
#include <unordered_map>

#include "base/index.h"
#include "engine/tokenizer/gguf_pretokenizers.h"
#include "engine/tokenizer/spm_proto.h"
#include "engine/tokenizer/tokenizer_base.h"
#include "engine/tokenizer/tokenizer_parts.h"

namespace quire::tokenizer_internal {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kFile = "the vocabulary";

/// Control tokens that end an answer in every model that has them. Converters keep only one of the
/// ids of generation_config.json, for example <|im_end|> of Qwen2.5 without its <|endoftext|>.
constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                      "<|eot_id|>",    "<|eom_id|>",      "<|end|>",
                                      "<end_of_turn>"};

/// The types of tokens are those of sentencepiece (SpmPieceType).
constexpr auto kNormal = static_cast<std::int64_t>(SpmPieceType::kNormal);
constexpr auto kUnknown = static_cast<std::int64_t>(SpmPieceType::kUnknown);
constexpr auto kControl = static_cast<std::int64_t>(SpmPieceType::kControl);
constexpr auto kUserDefined = static_cast<std::int64_t>(SpmPieceType::kUserDefined);
constexpr auto kUnused = static_cast<std::int64_t>(SpmPieceType::kUnused);
constexpr auto kByte = static_cast<std::int64_t>(SpmPieceType::kByte);

Status bad(const char* key, const std::string& message) {
  return Status::invalid(key, std::string(key) + " " + message);
}

std::string in_quotes(std::string_view text) {
  return "\"" + std::string(text.substr(0, 80)) + "\"";
}

/// tokenizer.ggml.tokens and what stands beside it.
struct Vocabulary {
  const std::vector<std::string_view>* tokens = nullptr;
  std::vector<std::int64_t> types;  ///< one each
  std::optional<std::int64_t> bos, eos;
  std::vector<std::int64_t> ends;  ///< eos, end of turn, end of message, those of kEnds
  std::optional<bool> add_bos;

  std::string_view text(std::int64_t id) const { return (*tokens)[at(id)]; }
};

Result<Vocabulary> read_vocabulary(GgufFields& in) {
  Vocabulary out;
  const GgufArray* tokens = in.array(kTokens);
  if (tokens == nullptr) return bad(kTokens, "is missing: the file holds no vocabulary");
  if (tokens->strings.empty() || tokens->size > static_cast<std::uint64_t>(kMaxVocabulary)) {
    return bad(kTokens, "must be a list of at most " + std::to_string(kMaxVocabulary) + " strings");
  }
  for (const std::string_view token : tokens->strings) {
    if (token.size() > kMaxPieceBytes)
      return bad(kTokens, "has a token of " + std::to_string(token.size()) + " bytes");
  }
  out.tokens = &tokens->strings;
  const auto count = count_of(tokens->strings);
  out.types.assign(tokens->strings.size(), kNormal);
  if (const GgufArray* types = in.array("tokenizer.ggml.token_type"); types != nullptr) {
    if (types->integers.size() != tokens->strings.size()) {
      return bad("tokenizer.ggml.token_type", "has " + std::to_string(types->size) +
                                                  " values for " + std::to_string(count) +
                                                  " tokens");
    }
    out.types = types->integers;
  }
  for (std::int64_t& type : out.types) {
    if (type == 0) type = kNormal;  // "undefined", as some converters write it
    if (type < kNormal || type > kByte)
      return bad("tokenizer.ggml.token_type", "has the unknown value " + std::to_string(type));
  }
  constexpr std::int64_t kNone = 0xffffffff;
  const auto id = [&](const char* name) -> std::optional<std::int64_t> {
    const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
    const std::int64_t value = in.integer(key, -1, kNone, kNone);
    if (value < 0 || value == kNone) return std::nullopt;
    if (value >= count)
      in.fail(key, "is " + std::to_string(value) + ", but there are " + std::to_string(count) +
                       " tokens");
    return value;
  };
  out.bos = id("bos");
  out.eos = id("eos");
  for (const auto& end : {out.eos, id("eot"), id("eom")}) {
    if (end) out.ends.push_back(*end);
  }
  out.add_bos = in.boolean("tokenizer.ggml.add_bos_token");
  QUIRE_RETURN_IF_ERROR(in.status());
  // A token that begins or ends a text is a control token, whatever a converter made of it.
  std::vector<std::int64_t> controls = out.ends;
  if (out.bos) controls.push_back(*out.bos);
  for (const std::int64_t control : controls) {
    std::int64_t& type = out.types[at(control)];
    if (type == kNormal || type == kUserDefined) type = kControl;
  }
  for (std::int64_t token = 0; token < count; ++token) {
    if (out.types[at(token)] != kControl || std::ranges::find(out.ends, token) != out.ends.end())
      continue;
    if (std::ranges::find(kEnds, out.text(token)) != std::end(kEnds)) out.ends.push_back(token);
  }
  return out;
}

ConfigFiles config_of(const Vocabulary& vocabulary) {
  ConfigFiles out;
  out.has_tokenizer_config = true;
  if (vocabulary.bos) out.bos = std::string(vocabulary.text(*vocabulary.bos));
  for (const std::int64_t end : vocabulary.ends)
    out.eos_ids.push_back(static_cast<std::int32_t>(end));
  out.add_bos = vocabulary.add_bos;
  out.model_vocab_size = static_cast<std::int32_t>(vocabulary.tokens->size());
  return out;
}

// Byte-level BPE.

Result<NamedPretokenizer> read_pretokenizer(GgufFields& in, std::string& name) {
  constexpr const char* kKey = "tokenizer.ggml.pre";
  const auto said = in.text(kKey);
  QUIRE_RETURN_IF_ERROR(in.status());
  name = std::string(said.value_or("default"));
  if (!said) {  // older files: the architecture tells for those with one vocabulary
    const std::string_view architecture = in.text("general.architecture").value_or("");
    if (architecture.starts_with("qwen")) name = "qwen2";
  }
  if (auto found = named_pretokenizer(name)) return std::move(*found);
  return Status(Code::kUnimplemented,
                std::string(kKey) + " is " + in_quotes(name) +
                    ", a pre-tokeniser this build does not know (known: " + pretokenizer_names() +
                    "). Use the model's folder with its tokenizer.json",
                kKey);
}

using Ids = std::unordered_map<std::string_view, std::int32_t>;

Status read_merges(GgufFields& in, const Ids& ids, BpeSpec& spec) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  const GgufArray* merges = in.array(kKey);
  if (merges == nullptr || merges->strings.empty())
    return bad(kKey, "is missing or no list of strings");
  std::string joined;
  for (const std::string_view merge : merges->strings) {
    // The space between the two: where pieces have spaces themselves, the one with a piece on
    // either side.
    auto left = ids.end(), right = ids.end();
    for (std::size_t at = merge.find(' ', 1); at != std::string_view::npos && right == ids.end();
         at = merge.find(' ', at + 1)) {
      left = ids.find(merge.substr(0, at));
      right = left == ids.end() ? ids.end() : ids.find(merge.substr(at + 1));
    }
    if (right == ids.end())
      return bad(kKey, "holds " + in_quotes(merge) + ", which is no pair of tokens");
    joined.assign(left->first).append(right->first);
    const auto to = ids.find(joined);
    if (to == ids.end())
      return bad(kKey, "holds " + in_quotes(merge) + ", but " + in_quotes(joined) + " is no token");
    spec.merges.push_back(
        {left->second, right->second, to->second, static_cast<std::uint32_t>(spec.merges.size())});
  }
  return {};
}

Result<std::unique_ptr<Tokenizer>> make_bpe(GgufFields& in, const Vocabulary& vocabulary) {
  BpeSpec spec;
  spec.file = kFile;
  std::string name;
  QUIRE_ASSIGN_OR_RETURN(NamedPretokenizer pretokenizer, read_pretokenizer(in, name));
  spec.patterns = std::move(pretokenizer.patterns);
  spec.nfc = pretokenizer.nfc;
  spec.whole_words = pretokenizer.whole_words;
  spec.space_first = in.boolean("tokenizer.ggml.add_space_prefix").value_or(false);
  QUIRE_RETURN_IF_ERROR(in.status());
  Ids ids;
  ids.reserve(vocabulary.tokens->size());
  std::set<std::string_view> added;
  spec.pieces.resize(vocabulary.tokens->size());
  for (std::size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string_view text = (*vocabulary.tokens)[id];
    const std::int64_t type = vocabulary.types[id];
    if (text.empty() || type == kUnused || !ids.emplace(text, static_cast<std::int32_t>(id)).second)
      continue;
    if (type == kControl || type == kUserDefined) {
      if (added.insert(text).second) {
        spec.added.push_back({.id = static_cast<std::int32_t>(id),
                              .text = std::string(text),
                              .special = type == kControl});
      }
    } else {
      spec.pieces[id] = bytes_of_byte_level(text);
    }
  }
  QUIRE_RETURN_IF_ERROR(read_merges(in, ids, spec));
  const KindDefaults kind{
      .bos = {}, .eos = {"<|endoftext|>", "<|end_of_text|>"}, .add_bos = pretokenizer.add_bos};
  return finish_bpe(std::move(spec), config_of(vocabulary), kind,
                    "byte-level BPE (GGUF, " + name + ")");
}

// Sentencepiece: the model is written as the library's own file and read like one.

void put_varint(std::uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void put_number(std::uint32_t field, std::uint64_t value, std::string& out) {
  put_varint(std::uint64_t{field} << 3, out);
  put_varint(value, out);
}
void put_bytes(std::uint32_t field, std::string_view bytes, std::string& out) {
  put_varint(std::uint64_t{field} << 3 | 2, out);
  put_varint(bytes.size(), out);
  out += bytes;
}
void put_float(std::uint32_t field, float value, std::string& out) {
  put_varint(std::uint64_t{field} << 3 | 5, out);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

/// Pieces: text 1, score 2, type 3.
Result<std::string> spm_pieces(GgufFields& in, const Vocabulary& vocabulary) {
  constexpr const char* kKey = "tokenizer.ggml.scores";
  const GgufArray* scores = in.array(kKey);
  if (scores == nullptr || scores->reals.size() != vocabulary.tokens->size()) {
    return bad(kKey, "must be a list of " + std::to_string(vocabulary.tokens->size()) +
                         " numbers, one for each token");
  }
  std::string out;
  std::set<std::string_view> seen;
  for (std::size_t id = 0; id < vocabulary.tokens->size(); ++id) {
    const std::string_view text = (*vocabulary.tokens)[id];
    const double score = scores->reals[id];
    if (!std::isfinite(score))
      return bad(kKey, "has a value that is not a finite number for token " + std::to_string(id));
    // Ids without a text, or with that of another, are padding.
    const bool padding = text.empty() || text.find('\0') != std::string_view::npos ||
                         !seen.insert(text).second;
    std::string piece;
    put_bytes(1, padding ? "[UNUSED-" + std::to_string(id) + "]" : std::string(text), piece);
    put_float(2, static_cast<float>(score), piece);
    put_number(3, static_cast<std::uint64_t>(padding ? kUnused : vocabulary.types[id]), piece);
    put_bytes(1, piece, out);
  }
  return out;
}

/// Leaves one token of the type unknown: converters give it to the padding of a vocabulary, too.
void mark_unknown(GgufFields& in, std::vector<std::int64_t>& types) {
  const auto first = std::ranges::find(types, kUnknown);
  std::int64_t unknown = in.integer("tokenizer.ggml.unknown_token_id", 0, count_of(types) - 1, 0);
  if (first != types.end() && types[at(unknown)] != kUnknown) unknown = first - types.begin();
  std::ranges::replace(types, kUnknown, kUnused);
  types[at(unknown)] = kUnknown;
}

/// The control tokens of Phi-3 take the white space behind them. Only its tokenizer.json says so.
void strip_behind_controls_of_phi3(const Vocabulary& vocabulary, ConfigFiles& config) {
  for (std::int64_t id = 0; id < count_of(vocabulary.types); ++id) {
    const std::string_view text = vocabulary.text(id);
    const bool control = vocabulary.types[at(id)] == kControl || text == "</s>";
    if (!control || text == "<s>" || text == "<|endoftext|>") continue;
    config.added.push_back({.id = static_cast<std::int32_t>(id),
                            .text = std::string(text),
                            .special = vocabulary.types[at(id)] == kControl,
                            .rstrip = true});
  }
}

Result<std::unique_ptr<Tokenizer>> make_spm(GgufFields& in, Vocabulary vocabulary) {
  mark_unknown(in, vocabulary.types);
  QUIRE_ASSIGN_OR_RETURN(std::string bytes, spm_pieces(in, vocabulary));
  // TrainerSpec: model_type 3 (2: BPE), byte_fallback 35, and the spellings 45 to 47 of unknown,
  // begin and end.
  std::string trainer, normalizer;
  put_number(3, 2, trainer);
  put_number(35, std::count(vocabulary.types.begin(), vocabulary.types.end(), kByte) > 0 ? 1 : 0,
             trainer);
  const auto unknown = std::find(vocabulary.types.begin(), vocabulary.types.end(), kUnknown) -
                       vocabulary.types.begin();
  put_bytes(45, vocabulary.text(unknown), trainer);
  if (vocabulary.bos) put_bytes(46, vocabulary.text(*vocabulary.bos), trainer);
  if (vocabulary.eos) put_bytes(47, vocabulary.text(*vocabulary.eos), trainer);
  // NormalizerSpec: name 1, character map 2, add_dummy_prefix 3, remove_extra_whitespaces 4,
  // escape_whitespaces 5.
  put_bytes(1, "identity", normalizer);
  if (const GgufArray* map = in.array("tokenizer.ggml.precompiled_charsmap"); map != nullptr) {
    std::string table;
    for (const std::int64_t byte : map->integers) table.push_back(static_cast<char>(byte));
    put_bytes(2, table, normalizer);
  }
  put_number(3, in.boolean("tokenizer.ggml.add_space_prefix").value_or(true) ? 1 : 0, normalizer);
  put_number(4, in.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false) ? 1 : 0,
             normalizer);
  put_number(5, 1, normalizer);
  QUIRE_RETURN_IF_ERROR(in.status());
  put_bytes(2, trainer, bytes);
  put_bytes(3, normalizer, bytes);
  const KindDefaults kind{.bos = {}, .eos = {"</s>"}, .add_bos = true, .space_after_special = true};
  ConfigFiles config = config_of(vocabulary);
  if (in.text("general.architecture") == "phi3") strip_behind_controls_of_phi3(vocabulary, config);
  return finish_spm(kFile, bytes, config, kind, "sentencepiece (GGUF)");
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> make_gguf_tokenizer(const GgufMetadata& metadata) {
  constexpr const char* kKey = "tokenizer.ggml.model";
  GgufFields in(metadata);
  const auto model = in.text(kKey);
  QUIRE_RETURN_IF_ERROR(in.status());
  if (!model) return bad(kKey, "is missing: the file holds no vocabulary");
  if (*model != "gpt2" && *model != "llama") {
    return Status(Code::kUnimplemented,
                  std::string(kKey) + " is " + in_quotes(*model) +
                      "; supported are gpt2 (byte-level BPE) and llama (sentencepiece)",
                  kKey);
  }
  QUIRE_ASSIGN_OR_RETURN(Vocabulary vocabulary, read_vocabulary(in));
  const ConfigFiles config = config_of(vocabulary);
  auto tokenizer = *model == "gpt2" ? make_bpe(in, vocabulary)
                                    : make_spm(in, std::move(vocabulary));
  if (tokenizer.ok()) QUIRE_RETURN_IF_ERROR(check_fit(config, **tokenizer));
  return tokenizer;
}

Result<std::optional<std::string>> gguf_tokenizer_config(const std::filesystem::path& path) {
  using Text = std::optional<std::string>;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(path));
  if (!gguf) return Text();
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(*gguf));
  GgufFields in(file->metadata());
  boost::json::object out;
  const GgufArray* tokens = in.array(kTokens);
  for (const char* name : {"bos", "eos"}) {
    const std::int64_t id = in.integer("tokenizer.ggml." + std::string(name) + "_token_id", 0,
                                       kMaxVocabulary, kMaxVocabulary);
    if (tokens == nullptr || static_cast<std::uint64_t>(id) >= tokens->strings.size()) continue;
    out[std::string(name) + "_token"] = tokens->strings[at(id)];
  }
  if (const auto add = in.boolean("tokenizer.ggml.add_bos_token")) out["add_bos_token"] = *add;
  const auto text = in.text("tokenizer.chat_template"),
             tools = in.text("tokenizer.chat_template.tool_use");
  if (text) out["chat_template"] = *text;
  if (text && tools) {
    using Object = boost::json::object;
    out["chat_template"] = boost::json::array{Object{{"name", "default"}, {"template", *text}},
                                              Object{{"name", "tool_use"}, {"template", *tools}}};
  }
  if (!in.status().ok()) return in.status().with_context(file->path());
  return Text(boost::json::serialize(out));
}

}  // namespace quire::tokenizer_internal
