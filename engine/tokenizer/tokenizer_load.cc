#include <algorithm>
#include <fstream>
#include <functional>
#include <system_error>

#include "base/index.h"
#include "engine/gguf/gguf.h"
#include "engine/tokenizer/bpe_tokenizer.h"
#include "engine/tokenizer/config_files.h"
#include "engine/tokenizer/gguf_vocab.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/spm_proto.h"
#include "engine/tokenizer/spm_tokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_parts.h"
#include "engine/tokenizer/vocab_files.h"

namespace quire {
namespace tokenizer_internal {
namespace {

constexpr std::uintmax_t kMaxFileBytes = 256U << 20;
constexpr std::size_t kLlama3Ranks = 128000;
constexpr std::size_t kQwenRanks = 151643;

/// The 256 control tokens behind Llama-3's ranks, as Llama-3.1 names them.
std::vector<AddedToken> llama3_tokens() {
  std::vector<std::string> names = {"<|begin_of_text|>",
                                    "<|end_of_text|>",
                                    "<|reserved_special_token_0|>",
                                    "<|reserved_special_token_1|>",
                                    "<|finetune_right_pad_id|>",
                                    "<|reserved_special_token_2|>",
                                    "<|start_header_id|>",
                                    "<|end_header_id|>",
                                    "<|eom_id|>",
                                    "<|eot_id|>",
                                    "<|python_tag|>"};
  for (int i = 3; names.size() < 256; ++i)
    names.push_back("<|reserved_special_token_" + std::to_string(i) + "|>");
  std::vector<AddedToken> tokens;
  for (std::size_t i = 0; i < names.size(); ++i) {
    tokens.push_back(
        {.id = static_cast<std::int32_t>(kLlama3Ranks + i), .text = names[i], .special = true});
  }
  return tokens;
}

std::vector<AddedToken> qwen_tokens() {
  std::vector<std::string> names = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  for (int i = 0; i < 205; ++i) names.push_back("<|extra_" + std::to_string(i) + "|>");
  std::vector<AddedToken> tokens;
  for (std::size_t i = 0; i < names.size(); ++i) {
    tokens.push_back(
        {.id = static_cast<std::int32_t>(kQwenRanks + i), .text = names[i], .special = true});
  }
  return tokens;
}

/// Adds what the configuration files list. `replaceable`: the vocabulary's own names are only
/// defaults.
Status merge_added(const ConfigFiles& config, bool replaceable, std::vector<AddedToken>& added) {
  for (const AddedToken& token : config.added) {
    const auto known = std::find_if(added.begin(), added.end(),
                                    [&](const AddedToken& t) { return t.id == token.id; });
    if (known == added.end()) {
      added.push_back(token);
    } else if (known->text == token.text) {
      known->special = known->special || token.special;
    } else if (replaceable) {
      *known = token;
    } else {
      return Status::invalid("tokenizer_config.json",
                             "tokenizer_config.json: id " + std::to_string(token.id) + " is '" +
                                 token.text + "', but the vocabulary says '" + known->text + "'");
    }
  }
  for (AddedToken& token : added) {
    token.special = token.special || std::find(config.special.begin(), config.special.end(),
                                               token.text) != config.special.end();
  }
  return {};
}

/// Ids inside the vocabulary must name its own piece; ids past it must be near; no spelling may
/// have two ids.
Status check_added(const std::string& file, const std::vector<AddedToken>& added,
                   std::size_t num_pieces, const std::function<std::string(std::size_t)>& piece) {
  std::vector<std::string_view> texts;
  for (const AddedToken& token : added) {
    const auto id = to_size(token.id);
    if (id >= num_pieces + added.size() + 65536) {
      return Status::invalid(file, file + ": added token '" + token.text + "' has the absurd id " +
                                       std::to_string(token.id));
    }
    if (id < num_pieces && !piece(id).empty() && piece(id) != token.text &&
        piece(id) != bytes_of_byte_level(token.text)) {
      return Status::invalid(file, file + ": id " + std::to_string(token.id) + " is '" + piece(id) +
                                       "' in the vocabulary, but '" + token.text +
                                       "' in its list of added tokens");
    }
    texts.push_back(token.text);
  }
  std::sort(texts.begin(), texts.end());
  if (const auto twice = std::adjacent_find(texts.begin(), texts.end()); twice != texts.end()) {
    return Status::invalid(file, file + ": added token '" + std::string(*twice) + "' has two ids");
  }
  return {};
}

/// Pieces inside the vocabulary that the files call special, or <|endoftext|>, without giving their
/// id.
void find_special_pieces(const ConfigFiles& config, BpeSpec& spec) {
  std::vector<std::string> names = config.special;
  names.emplace_back("<|endoftext|>");
  for (const std::string& name : names) {
    const AddedToken token{.id = 0, .text = name};
    const bool listed = std::any_of(spec.added.begin(), spec.added.end(),
                                    [&](const AddedToken& t) { return t.text == name; });
    if (listed || !token.control()) continue;
    const auto at = std::find(spec.pieces.begin(), spec.pieces.end(), name);
    if (at != spec.pieces.end()) {
      spec.added.push_back({.id = static_cast<std::int32_t>(at - spec.pieces.begin()),
                            .text = name,
                            .special = true});
    }
  }
}

/// The id of a spelling among added tokens, then pieces.
std::optional<std::int32_t> find_id(const std::optional<std::string>& text,
                                    const std::vector<AddedToken>& added, std::size_t num_pieces,
                                    const std::function<std::string(std::size_t)>& piece) {
  if (!text) return std::nullopt;
  for (const AddedToken& token : added) {
    if (token.text == *text) return token.id;
  }
  for (std::size_t id = 0; id < num_pieces; ++id) {
    if (piece(id) == *text) return static_cast<std::int32_t>(id);
  }
  return std::nullopt;
}

Result<TokenizerSettings> synchronize(const ConfigFiles& config, const KindDefaults& kind,
                                      const std::vector<AddedToken>& added, std::size_t num_pieces,
                                      const std::function<std::string(std::size_t)>& piece) {
  const auto id_of_text = [&](const std::optional<std::string>& text) {
    return find_id(text, added, num_pieces, piece);
  };
  TokenizerSettings settings;
  const auto bos = config.bos || config.has_tokenizer_config ? config.bos : kind.bos;
  settings.bos_id = id_of_text(bos);
  settings.add_bos = config.add_bos.value_or(kind.add_bos) && settings.bos_id.has_value();
  if (config.bos && !settings.bos_id && config.add_bos.value_or(kind.add_bos)) {
    return Status::invalid(
        "bos_token", "tokenizer_config.json: bos_token '" + *bos + "' is not in the vocabulary");
  }
  settings.eos_ids = config.eos_ids;
  if (const auto id = id_of_text(config.eos)) settings.eos_ids.push_back(*id);
  if (config.eos && settings.eos_ids.empty()) {
    return Status::invalid("eos_token", "tokenizer_config.json: eos_token '" + *config.eos +
                                            "' is not in the vocabulary");
  }
  if (settings.eos_ids.empty()) {
    for (const std::string& text : kind.eos) {
      if (const auto id = id_of_text(text)) settings.eos_ids.push_back(*id);
    }
  }
  std::sort(settings.eos_ids.begin(), settings.eos_ids.end());
  settings.eos_ids.erase(std::unique(settings.eos_ids.begin(), settings.eos_ids.end()),
                         settings.eos_ids.end());
  settings.space_after_special = kind.space_after_special;
  return settings;
}

}  // namespace

Status check_fit(const ConfigFiles& config, const Tokenizer& tokenizer) {
  const std::int64_t size = tokenizer.vocab_size();
  for (const std::int32_t id : tokenizer.eos_ids()) {
    if (id >= size) {
      return Status::invalid("eos_token_id",
                             "generation_config.json or config.json: eos_token_id " +
                                 std::to_string(id) + " is outside the vocabulary of " +
                                 std::to_string(size) + " tokens");
    }
  }
  if (!config.model_vocab_size) return {};
  const std::int64_t model = *config.model_vocab_size;
  if (size <= model && model <= size + size / 4 + 1024) return {};
  return Status::invalid(
      "vocab_size", "config.json: vocab_size is " + std::to_string(model) +
                        ", but the tokenizer (" + std::string(tokenizer.description()) + ") has " +
                        std::to_string(size) + " tokens: they belong to different models");
}

Result<std::unique_ptr<Tokenizer>> finish_bpe(BpeSpec spec, const ConfigFiles& config,
                                              const KindDefaults& kind, std::string description) {
  find_special_pieces(config, spec);
  const auto piece = [&spec](std::size_t id) { return spec.pieces[id]; };
  QUIRE_RETURN_IF_ERROR(check_added(spec.file, spec.added, spec.pieces.size(), piece));
  QUIRE_ASSIGN_OR_RETURN(TokenizerSettings settings,
                         synchronize(config, kind, spec.added, spec.pieces.size(), piece));
  settings.description = std::move(description);
  return make_bpe_tokenizer(std::move(spec), std::move(settings));
}

Result<std::unique_ptr<Tokenizer>> finish_spm(const std::string& file, const std::string& bytes,
                                              const ConfigFiles& config, const KindDefaults& kind,
                                              std::string description) {
  auto parsed = parse_spm_model(bytes);
  if (!parsed.ok()) {
    return Status(parsed.code(), file + ": " + parsed.status().message(), file);
  }
  SpmModel model = std::move(parsed).value();
  std::vector<AddedToken> added;
  QUIRE_RETURN_IF_ERROR(merge_added(config, /*replaceable=*/false, added));
  const auto piece = [&model](std::size_t id) {
    const SpmPieceType type = model.pieces[id].type;
    const bool renameable = type == SpmPieceType::kControl || type == SpmPieceType::kUserDefined ||
                            type == SpmPieceType::kUnused;
    return renameable ? std::string() : model.pieces[id].text;
  };
  QUIRE_RETURN_IF_ERROR(check_added(file, added, model.pieces.size(), piece));
  for (const AddedToken& token : added) {  // some models rename the reserved pieces
    const auto id = to_size(token.id);
    if (id < model.pieces.size() && piece(id).empty()) model.pieces[id].text = token.text;
  }
  const auto text = [&model](std::size_t id) { return model.pieces[id].text; };
  QUIRE_ASSIGN_OR_RETURN(TokenizerSettings settings,
                         synchronize(config, kind, added, model.pieces.size(), text));
  settings.description = std::move(description);
  return make_spm_tokenizer(file, bytes, std::move(model), std::move(added), std::move(settings));
}

namespace {

/// tokenizer.model as Llama-3 ships it.
Result<std::unique_ptr<Tokenizer>> load_llama3_ranks(const std::string& text,
                                                     const ConfigFiles& config) {
  QUIRE_ASSIGN_OR_RETURN(BpeSpec spec, parse_ranks("tokenizer.model", text));
  const bool llama3 = spec.pieces.size() == kLlama3Ranks;
  if (!llama3 && config.model_type != "llama") {
    return Status(Code::kUnimplemented,
                  "tokenizer.model: ranks of an unknown family (" +
                      std::to_string(spec.pieces.size()) +
                      " tokens); its pre-tokeniser pattern is not in the file. Put the model's "
                      "tokenizer.json beside it and "
                      "remove tokenizer.model",
                  "tokenizer.model");
  }
  spec.patterns = {std::string(kLlama3Pattern)};
  if (llama3) spec.added = llama3_tokens();
  QUIRE_RETURN_IF_ERROR(merge_added(config, /*replaceable=*/true, spec.added));
  const KindDefaults kind{
      .bos = "<|begin_of_text|>", .eos = {"<|end_of_text|>", "<|eot_id|>"}, .add_bos = true};
  return finish_bpe(std::move(spec), config, kind, "byte-level BPE (tokenizer.model, ranks)");
}

Result<std::unique_ptr<Tokenizer>> load_qwen_ranks(const std::string& text,
                                                   const ConfigFiles& config) {
  QUIRE_ASSIGN_OR_RETURN(BpeSpec spec, parse_ranks("qwen.tiktoken", text));
  spec.patterns = {std::string(kQwenPattern)};
  spec.nfc = true;
  if (spec.pieces.size() == kQwenRanks) spec.added = qwen_tokens();
  QUIRE_RETURN_IF_ERROR(merge_added(config, /*replaceable=*/true, spec.added));
  return finish_bpe(std::move(spec), config, {.eos = {"<|endoftext|>", "<|im_end|>"}},
                    "byte-level BPE (qwen.tiktoken)");
}

Result<std::unique_ptr<Tokenizer>> load_vocab_and_merges(const TokenizerFiles& files,
                                                         const ConfigFiles& config) {
  QUIRE_ASSIGN_OR_RETURN(BpeSpec spec,
                         parse_vocab_and_merges(*files.vocab_json, *files.merges_txt));
  const bool qwen = config.tokenizer_class.starts_with("Qwen2") ||
                    config.model_type.starts_with("qwen");
  const bool gpt2 = config.tokenizer_class.empty() || config.tokenizer_class.starts_with("GPT2") ||
                    config.tokenizer_class.starts_with("CodeGen");
  if (!qwen && !gpt2) {
    return Status(Code::kUnimplemented,
                  "vocab.json: the pre-tokeniser of tokenizer_class '" + config.tokenizer_class +
                      "' is not known; put the model's tokenizer.json beside it",
                  "tokenizer_class");
  }
  spec.patterns = {std::string(qwen ? kQwenPattern : kGpt2Pattern)};
  spec.nfc = qwen;
  QUIRE_RETURN_IF_ERROR(merge_added(config, /*replaceable=*/false, spec.added));
  return finish_bpe(std::move(spec), config, {.eos = {"<|endoftext|>"}},
                    "byte-level BPE (vocab.json, merges.txt)");
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer_json(const std::string& text,
                                                       const ConfigFiles& config) {
  QUIRE_ASSIGN_OR_RETURN(TokenizerJson parsed, parse_tokenizer_json(text));
  QUIRE_RETURN_IF_ERROR(merge_added(config, /*replaceable=*/false, parsed.spec.added));
  KindDefaults kind{
      .eos = {"</s>", "<|endoftext|>", "<|end_of_text|>"},
      .add_bos = parsed.bos_template ||
                 (config.tokenizer_class.starts_with("Llama") && parsed.spec.byte_fallback),
      .space_after_special = parsed.space_after_special};
  if (parsed.bos_template) kind.bos = parsed.bos;
  const std::string description = parsed.spec.byte_fallback
                                      ? "BPE with byte fallback (tokenizer.json)"
                                      : "byte-level BPE (tokenizer.json)";
  return finish_bpe(std::move(parsed.spec), config, kind, description);
}

Result<std::unique_ptr<Tokenizer>> load_sentencepiece(const TokenizerFiles& files,
                                                      const ConfigFiles& config) {
  KindDefaults kind{.bos = "<s>",
                    .eos = {"</s>"},
                    .add_bos = true,
                    .space_after_special = !(config.legacy == false)};
  if (files.tokenizer_json) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<bool> scheme,
                           space_scheme_of_tokenizer_json(*files.tokenizer_json));
    kind.space_after_special = scheme.value_or(kind.space_after_special);
  }
  return finish_spm("tokenizer.model", *files.tokenizer_model, config, kind,
                    "sentencepiece (tokenizer.model)");
}

Result<std::unique_ptr<Tokenizer>> pick(const TokenizerFiles& files, const ConfigFiles& config) {
  if (files.tokenizer_model) {
    const std::string& model = *files.tokenizer_model;
    if (model.empty()) return Status::invalid("tokenizer.model", "tokenizer.model: is empty");
    if (model.front() == '\n') return load_sentencepiece(files, config);  // the tag of field 1
    if (model.find(' ') != std::string::npos) return load_llama3_ranks(model, config);
    return Status::invalid("tokenizer.model",
                           "tokenizer.model: is neither a sentencepiece model nor a list of ranks");
  }
  if (files.tokenizer_json) return load_tokenizer_json(*files.tokenizer_json, config);
  if (files.vocab_json && files.merges_txt) return load_vocab_and_merges(files, config);
  if (files.qwen_tiktoken) return load_qwen_ranks(*files.qwen_tiktoken, config);
  if (files.vocab_json)
    return Status::not_found(files.folder + ": has vocab.json, but no merges.txt")
        .with_field("merges.txt");
  return Status::not_found(files.folder +
                           ": has no tokenizer (tokenizer.model, tokenizer.json, vocab.json with "
                           "merges.txt, or qwen.tiktoken)");
}

Status read_file(const std::filesystem::path& path, std::optional<std::string>& out) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return Status::io(path.string() + ": " + error.message());
  if (size > kMaxFileBytes)
    return Status::invalid(path.filename().string(),
                           path.string() + ": is larger than 256 MiB, which no tokenizer file is");
  std::ifstream in(path, std::ios::binary);
  std::string bytes(size, '\0');
  if (!in.read(bytes.data(), static_cast<std::streamsize>(size)))
    return Status::io(path.string() + ": cannot be read");
  out = std::move(bytes);
  return {};
}

}  // namespace
}  // namespace tokenizer_internal

Result<TokenizerFiles> read_tokenizer_files(const std::filesystem::path& model_dir) {
  using tokenizer_internal::read_file;
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error))
    return Status::not_found(model_dir.string() + ": no such model folder");
  TokenizerFiles files;
  files.folder = model_dir.string();
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "tokenizer.model", files.tokenizer_model));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "tokenizer.json", files.tokenizer_json));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "vocab.json", files.vocab_json));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "merges.txt", files.merges_txt));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "qwen.tiktoken", files.qwen_tiktoken));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "tokenizer_config.json", files.tokenizer_config));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "special_tokens_map.json", files.special_tokens_map));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "added_tokens.json", files.added_tokens));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "generation_config.json", files.generation_config));
  QUIRE_RETURN_IF_ERROR(read_file(model_dir / "config.json", files.config));
  return files;
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(const TokenizerFiles& files) {
  const auto load = [&files]() -> Result<std::unique_ptr<Tokenizer>> {
    QUIRE_ASSIGN_OR_RETURN(const tokenizer_internal::ConfigFiles config,
                           tokenizer_internal::parse_config_files(files));
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                           tokenizer_internal::pick(files, config));
    QUIRE_RETURN_IF_ERROR(tokenizer_internal::check_fit(config, *tokenizer));
    return tokenizer;
  };
  Result<std::unique_ptr<Tokenizer>> result = load();
  if (!result.ok() && !files.folder.empty() && result.code() != Code::kNotFound)
    return result.status().with_context(files.folder);
  return result;
}

Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& model_dir) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model_dir));
  if (gguf) {
    QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file, GgufFile::open(*gguf));
    auto tokenizer = tokenizer_internal::make_gguf_tokenizer(file->metadata());
    if (!tokenizer.ok()) return tokenizer.status().with_context(file->path());
    return tokenizer;
  }
  QUIRE_ASSIGN_OR_RETURN(const TokenizerFiles files, read_tokenizer_files(model_dir));
  return make_tokenizer(files);
}

}  // namespace quire
