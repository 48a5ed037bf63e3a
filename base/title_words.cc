#include "base/title_words.h"

#include "base/words.h"

namespace quire {

std::vector<std::string> title_words(std::string_view title, Stemmer& stemmer) {
  std::string name;
  int depth = 0;
  for (const char c : title) {
    if (c == '(') ++depth;
    if (depth == 0) name.push_back(c);
    if (c == ')' && depth > 0) --depth;
  }
  std::vector<std::string> words = split_words(name, stemmer);
  std::size_t bytes = 0;
  for (const std::string& word : words) bytes += word.size();
  if (bytes < kShortestName) words.clear();
  return words;
}

}  // namespace quire
