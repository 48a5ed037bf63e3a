/// The small JSON files beside a vocabulary: tokenizer_config.json, special_tokens_map.json,
/// added_tokens.json, generation_config.json, config.json.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace boost::json {
class value;
}  // namespace boost::json

namespace quire::tokenizer_internal {

struct ConfigFiles {
  std::vector<AddedToken> added;        ///< with ids: added_tokens_decoder, added_tokens.json
  std::vector<std::string> special;     ///< spellings called special without an id
  std::optional<std::string> bos, eos;  ///< spellings
  bool has_tokenizer_config = false;    ///< then an absent bos means none
  std::optional<bool> add_bos, legacy;
  std::string tokenizer_class, model_type;
  std::vector<std::int32_t> eos_ids;   ///< generation_config.json and config.json
  std::optional<std::int32_t> bos_id;  ///< config.json
  std::optional<std::int32_t> model_vocab_size;
};

/// A token id: an integer in [0, kMaxVocabulary).
std::optional<std::int32_t> id_of(const boost::json::value& value);

/// Errors: kInvalidArgument naming the file and the key.
Result<ConfigFiles> parse_config_files(const TokenizerFiles& files);

}  // namespace quire::tokenizer_internal
