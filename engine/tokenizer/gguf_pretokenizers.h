/// The pre-tokenisers that GGUF files name (tokenizer.ggml.pre).
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::tokenizer_internal {

/// What a name stands for, as the models it was made for publish it in their tokenizer.json.
struct NamedPretokenizer {
  std::vector<std::string> patterns;  ///< applied one after another (Pretokenizer)
  bool nfc = false;
  bool whole_words = false;  ///< a word that is a token is taken before any merge
  bool add_bos = false;      ///< where the file does not say
};

/// None for an unknown name.
std::optional<NamedPretokenizer> named_pretokenizer(std::string_view name);
/// All names, in order, for messages.
std::string pretokenizer_names();

}  // namespace quire::tokenizer_internal
