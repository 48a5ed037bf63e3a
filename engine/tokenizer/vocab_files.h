/// Vocabulary files of byte-pair tokenizers, parsed from memory into a BpeSpec.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/tokenizer/bpe_tokenizer.h"

namespace quire::tokenizer_internal {

/// Lines "base64(token bytes) rank"; the rank is the id, and two neighbours merge if their joined
/// bytes are a token, the lowest rank first. Errors: kInvalidArgument (field: file) with the line.
Result<BpeSpec> parse_ranks(const std::string& file, std::string_view text);

/// vocab.json ({piece: id}, byte-level) and merges.txt (a pair of pieces a line, earliest first).
Result<BpeSpec> parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt);

/// What tokenizer.json says beyond the vocabulary.
struct TokenizerJson {
  BpeSpec spec;
  bool bos_template = false;  ///< the post-processor puts `bos` in front
  std::string bos;
  bool space_after_special = false;  ///< every range between added tokens gets a space in front
};

/// Hugging Face's tokenizer.json of type BPE, over bytes or with byte fallback. kUnimplemented
/// names the part that this build cannot do (other model types, normalisers and pre-tokenisers).
Result<TokenizerJson> parse_tokenizer_json(std::string_view text);

/// Only TokenizerJson::space_after_special; for a tokenizer.json that stands beside a sentencepiece
/// file.
Result<std::optional<bool>> space_scheme_of_tokenizer_json(std::string_view text);

}  // namespace quire::tokenizer_internal
