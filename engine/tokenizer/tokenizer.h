/// Text to token ids and back, for every vocabulary format a Hugging Face model folder may carry.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// What the spelling of a control token (`<|im_end|>`, `</s>`, ...) inside a text means.
enum class Special : unsigned char {
  /// Ordinary characters: for everything a user or a document wrote, so that text cannot inject
  /// control tokens
  kNone,
  kParse,  ///< the control token: for prompts a trusted caller wrote as one string
};

/// Where a text stands. It matters only to sentencepiece-style vocabularies, which put a space
/// before a text.
enum class Start : unsigned char {
  kText,  ///< the text stands alone
  /// It continues earlier tokens: no space is put in front. Vocabularies that normalise white space
  /// away (remove_extra_whitespaces) cannot do this and treat it as kText
  kMiddle,
};

/// Half-open byte range of a text.
struct TokenSpan {
  std::uint32_t begin = 0, end = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// Token ids with the bytes of the text each came from: spans[i] belongs to ids[i]. Spans are
/// contiguous and ascending, the first begins at 0 and the last ends at the text's size. A span is
/// empty for a token no byte of the text stands for (the space put in front). Where Unicode
/// normalisation changed the text, spans point at the original bytes.
struct Encoding {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> spans;
};

/// A control token's spelling within a text, with the white space the token takes from its
/// neighbours.
struct ControlSpan {
  std::size_t begin = 0, end = 0;
  std::int32_t id = 0;
};

/// One model's vocabulary. Immutable: every method may be called from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of `text`, without BOS or EOS. The text should be valid UTF-8; broken bytes give the ids
  /// of the bytes, or of U+FFFD.
  virtual std::vector<std::int32_t> encode(std::string_view text, Special special = Special::kNone,
                                           Start start = Start::kText) const = 0;
  /// The same ids, with where each came from. Texts of 4 GiB and more are cut there.
  virtual Encoding encode_with_offsets(std::string_view text, Special special = Special::kNone,
                                       Start start = Start::kText) const = 0;

  /// Every control token that Special::kParse would find in `text`, in order. For prompts of which
  /// only a part may be parsed.
  virtual std::vector<ControlSpan> find_controls(std::string_view) const { return {}; }

  /// Always valid UTF-8: broken sequences become U+FFFD. Unknown ids add nothing. Special tokens
  /// are dropped unless `keep_special`, but for those of thoughts (has_text() in stream_decoder.h).
  /// To decode while ids arrive use StreamDecoder, which gives the same text.
  std::string decode(std::span<const std::int32_t> ids, bool keep_special = false) const;

  /// The bytes a token adds to a text (maybe a part of a character); a special token's spelling;
  /// empty for unknown ids. The view lives as long as the tokenizer.
  virtual std::string_view token_bytes(std::int32_t id) const = 0;
  /// A control token: decode() drops it, and it is only ever parsed from text under
  /// Special::kParse.
  virtual bool is_special(std::int32_t id) const = 0;
  /// The id of a special token's spelling, or of the ordinary token with exactly these bytes.
  virtual std::optional<std::int32_t> token_id(std::string_view piece) const = 0;

  /// One more than the largest id. A model may have more rows than this (padding), never fewer.
  virtual std::int32_t vocab_size() const = 0;
  virtual std::optional<std::int32_t> bos_id() const = 0;
  /// Every id that ends an answer (generation_config.json, tokenizer_config.json, config.json),
  /// ascending. May be empty.
  virtual const std::vector<std::int32_t>& eos_ids() const = 0;
  /// Whether this family puts a BOS before every text.
  virtual bool add_bos() const = 0;

  /// decode() removes one space from the very beginning (sentencepiece's own).
  virtual bool strips_first_space() const = 0;
  /// A text after a control token gets a space in front, as at the beginning (sentencepiece
  /// "legacy" behaviour).
  virtual bool space_after_special() const = 0;

  /// SHA-256 over everything that changes ids or texts. Equal digests mean equal token ids for
  /// every text.
  virtual const std::array<std::uint8_t, 32>& digest() const = 0;
  /// For people: kind and source file, e.g. "sentencepiece (tokenizer.model)".
  virtual std::string_view description() const = 0;
};

/// The contents of a model folder's tokenizer files, each empty where the file is missing.
struct TokenizerFiles {
  std::string folder;  ///< only for messages
  std::optional<std::string> tokenizer_model, tokenizer_json, vocab_json, merges_txt, qwen_tiktoken;
  std::optional<std::string> tokenizer_config, special_tokens_map, added_tokens, generation_config,
      config;
};

/// Reads what is there. Errors: kNotFound (no such folder, or none of the vocabulary files), kIo,
/// kInvalidArgument (a file above 256 MiB).
Result<TokenizerFiles> read_tokenizer_files(const std::filesystem::path& model_dir);

/// Picks the vocabulary: tokenizer.model (sentencepiece protobuf, or ranks as Llama-3 ships them),
/// then tokenizer.json, then vocab.json + merges.txt, then qwen.tiktoken. Errors: kInvalidArgument
/// naming the file (field) and what is wrong with it, also when the vocabulary does not fit
/// config.json's vocab_size; kUnimplemented for a kind not supported.
Result<std::unique_ptr<Tokenizer>> make_tokenizer(const TokenizerFiles& files);

/// Of a GGUF file (`model_dir` is the file, or a folder with one: engine/gguf/gguf.h, find_gguf)
/// the vocabulary in its metadata; else read_tokenizer_files() and make_tokenizer(). Errors are
/// those, with the file's path.
Result<std::unique_ptr<Tokenizer>> load_tokenizer(const std::filesystem::path& model_dir);

}  // namespace quire
