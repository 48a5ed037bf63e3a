/// This file reads regular expressions of the subset that regex_grammar.h states. Internal to
/// sample/.
#pragma once

#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/sample/pattern_tree.h"
#include "engine/sample/regex_grammar.h"

namespace quire {

/// An expression: the texts it describes, of which look-aheads leave some out.
struct RegexTree {
  /// A look-ahead at the beginning: texts that the whole text must be among, or must not.
  struct Look {
    PatternNode texts;
    bool wanted = true;
  };
  PatternNode texts;
  std::vector<Look> looks;
};

/// Errors: as regex_part(), but for the size of what is made of the tree.
Result<RegexTree> regex_tree(std::string_view regex, RegexUse use);

}  // namespace quire
