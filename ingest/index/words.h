/// Splits text into words for lexical search, independently of any model's vocabulary.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Longest word kept, in bytes; longer ones are cut there.
inline constexpr std::size_t kMaxWordBytes = 64;

/// Returns runs of letters, digits and marks, after compatibility decomposition, case folding and
/// removal of accents (U+0300 to U+036F): "Cafés" and "CAFES" give the same word. There is no
/// stemming and no list of stop words.
///
/// Scripts written without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer, Burmese) give each
/// pair of neighbouring characters, or a lone character itself. `text` is UTF-8; text that is not
/// has no words. Threads: any.
std::vector<std::string> split_words(std::string_view text);

}  // namespace quire
