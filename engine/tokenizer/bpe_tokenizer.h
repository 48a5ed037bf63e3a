/// Byte-pair encoding in its two forms: over bytes (GPT-2, Llama-3, Qwen) and over characters with
/// byte fallback (the tokenizer.json of Llama-2, Mistral and TinyLlama).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe_model.h"
#include "engine/tokenizer/tokenizer_base.h"

namespace quire::tokenizer_internal {

/// A byte-pair vocabulary as its files describe it.
struct BpeSpec {
  std::string file;  ///< for messages
  /// By id; empty: no such id. Over bytes: raw bytes. With fallback: UTF-8, U+2581 for a space
  std::vector<std::string> pieces;
  std::vector<Merge> merges;
  std::vector<AddedToken> added;      ///< ids may lie inside or past `pieces`
  std::vector<std::string> patterns;  ///< of the pre-tokeniser; over bytes only
  bool byte_fallback = false;
  bool nfc = false;
  /// A word that is a token is taken before any merge (Llama-3, tiktoken)
  bool whole_words = false;
  bool space_first = false;      ///< a text gets a space in front
  bool split_at_spaces = false;  ///< with fallback: merges do not cross the beginning of a word
  /// For what has no token: bytes, or with fallback characters that have neither a piece nor byte
  /// pieces
  std::int32_t unknown_id = -1;
};

/// Over bytes, other bytes than printable ASCII and line ends may have no token (SmolLM lacks 21):
/// they become the unknown token, or are dropped where there is none, as in Hugging Face's
/// tokenizers. Errors: kInvalidArgument (field: spec.file) if another byte has no token, or an id
/// appears twice.
Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(BpeSpec spec, TokenizerSettings settings);

/// The bytes a byte-level piece spells ("Ġthe" is " the"); the piece itself if it has a character
/// outside that alphabet.
std::string bytes_of_byte_level(std::string_view piece);

}  // namespace quire::tokenizer_internal
