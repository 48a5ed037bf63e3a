#include "engine/chat/token_words.h"

#include <algorithm>

#include "base/index.h"
#include "base/utf8.h"
#include "base/words.h"

namespace quire {

std::vector<TokenWord> token_words(const Tokenizer& tokenizer, std::span<const std::int32_t> ids,
                                   std::string_view language) {
  std::string text;
  std::vector<std::size_t> ends;  // [token] of its bytes in the text
  ends.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (tokenizer.is_special(id))
      text.push_back('\n');
    else
      text.append(tokenizer.token_bytes(id));
    ends.push_back(text.size());
  }
  // A range of tokens may begin or end inside a character.
  for (std::size_t valid = 0; valid < text.size();) {
    valid += tokenizer_internal::valid_utf8_prefix(std::string_view(text).substr(valid));
    if (valid < text.size()) text[valid] = '\n';
  }
  Stemmer stemmer(language);
  std::vector<TokenWord> out;
  auto token = ends.begin();
  for (Word& word : placed_words(text, stemmer)) {
    token = std::upper_bound(token, ends.end(), word.begin);
    out.push_back({std::move(word.text), static_cast<std::int32_t>(token - ends.begin())});
  }
  return out;
}

}  // namespace quire
