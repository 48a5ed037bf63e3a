/// This file builds the parts of JSON strings with a format, an expression or a length. Internal to
/// sample/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "engine/sample/grammar.h"

namespace quire {

/// Which strings a schema allows: those that fulfil all of it.
struct JsonStrings {
  std::optional<std::string> format, pattern;
  std::int32_t min = 0, max = Grammar::kUnbounded;  ///< characters
};

/// Builds the strings with quotes; there is a format or a pattern. Errors, whose field is the
/// keyword: as regex_part(); kUnimplemented for an unknown format and for keywords that take too
/// many states together, kInvalidArgument where they leave no text.
Result<Grammar::Part> json_string_part(GrammarBuilder& builder, const JsonStrings& strings);

}  // namespace quire
