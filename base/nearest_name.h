/// The known name that a mistyped one probably meant, for error texts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// Returns the name among `names` nearest to `word`; empty: none is close.
std::string nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace quire
