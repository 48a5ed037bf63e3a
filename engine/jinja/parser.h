/// A template's source as a tree.
#pragma once

#include <string_view>

#include "engine/jinja/ast.h"

namespace quire::jinja {

/// Throws Error with the line of what is wrong, LimitError where it nests too deep. Filters and
/// tests must be known (builtins.h).
Template parse(std::string_view source);

}  // namespace quire::jinja
