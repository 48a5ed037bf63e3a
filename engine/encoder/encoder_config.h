/// The configuration files of a text encoder's folder, as sentence-transformers writes them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace quire {

/// The shape of a BERT model (Devlin et al., "BERT", 2019): config.json with model_type `bert`.
struct BertConfig {
  std::int64_t hidden = 0, layers = 0, heads = 0, intermediate = 0;
  std::int64_t vocab = 0, positions = 0, types = 0;
  float eps = 1e-12f;
};

enum class Pooling : std::uint8_t { kMean, kFirst };

struct EncoderConfig {
  BertConfig bert;
  /// Tokens of a sequence, special ones included: sentence_bert_config.json, and no more than the
  /// model has positions.
  std::int64_t max_tokens = 0;
  Pooling pooling = Pooling::kMean;  ///< 1_Pooling/config.json; without one the mean
  /// What stands before a question and before a text (`prompts` of
  /// config_sentence_transformers.json); usually empty.
  std::string question_prompt, text_prompt;
};

/// Errors: kNotFound (no config.json), kInvalidArgument, kUnimplemented (another kind of model,
/// activation, pooling or module), kIo; field() is the file or its key.
Result<EncoderConfig> read_encoder_config(const std::filesystem::path& folder);

/// Parses config.json. Errors: kInvalidArgument, kUnimplemented; field() is the key.
Result<BertConfig> parse_bert_config(std::string_view text);

}  // namespace quire
