/// Words of a text that is given as tokens: where they begin, whatever the vocabulary cuts.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// A word as base/words.h gives it, and the index of the token that its first byte belongs to.
struct TokenWord {
  std::string text;
  std::int32_t token = 0;
  bool operator==(const TokenWord&) const = default;
};

/// Returns the words of the text that the tokens stand for, in order, stemmed by `language`
/// (base/stems.h). Control tokens and broken characters part words. Threads: any.
std::vector<TokenWord> token_words(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                                   std::string_view language);

}  // namespace quire
