/// Splits text into words for lexical search, independently of any model's vocabulary.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/stems.h"

namespace quire {

/// Longest word kept, in bytes; longer ones are cut there.
inline constexpr std::size_t kMaxWordBytes = 64;

/// A word of a text, and the byte of the text where it begins.
struct Word {
  std::string text;
  std::size_t begin = 0;
  bool operator==(const Word&) const = default;
};

/// Returns runs of letters, digits and marks, after compatibility decomposition and case folding;
/// of each its stem, without accents (U+0300 to U+036F): "Cafés" and "CAFES" give the same word.
/// There is no list of stop words.
///
/// Scripts written without spaces (Han, Hiragana, Katakana, Thai, Lao, Khmer, Burmese) give each
/// pair of neighbouring characters, or a lone character itself. `text` is UTF-8; text that is not
/// has no words. Threads: any, with a stemmer each.
std::vector<Word> placed_words(std::string_view text, Stemmer& stemmer);

/// Returns the words without their places.
std::vector<std::string> split_words(std::string_view text, Stemmer& stemmer);
/// Returns the words themselves, without stemming.
std::vector<std::string> split_words(std::string_view text);
/// Returns the words that a text is found by: those of split_words(), and each Han character of a
/// run besides, so that a question of one character finds it within a run.
std::vector<std::string> index_words(std::string_view text, Stemmer& stemmer);

/// A title of fewer bytes, all words together, is no name.
inline constexpr std::size_t kShortestName = 3;
/// Returns the words by which texts name what has this title: without what stands in round
/// brackets, so "Mercury (planet)" is called Mercury. Empty: it is too short to be a name.
std::vector<std::string> title_words(std::string_view title, Stemmer& stemmer);

}  // namespace quire
