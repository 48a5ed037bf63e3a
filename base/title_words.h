/// Words of a title by which other texts name a document.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/stems.h"

namespace quire {

/// A title of fewer bytes, all words together, is no name.
inline constexpr std::size_t kShortestName = 3;

/// Returns the words of a title (base/words.h) without what stands in round brackets: "Mercury
/// (planet)" is called Mercury. Empty: it is too short to be a name. Threads: any, with a stemmer
/// each.
std::vector<std::string> title_words(std::string_view title, Stemmer& stemmer);

}  // namespace quire
