/// The names that namespaces may have.
#pragma once

#include <string_view>

namespace quire {

/// Returns whether the name has 1 to 64 of [A-Za-z0-9._-], the first a letter or digit.
bool valid_namespace(std::string_view ns);

}  // namespace quire
