/// Grammars written as text, in llama.cpp's GBNF.
///
/// A rule is `name ::= alternatives`; the answer is a text of the rule `root`. Alternatives are
/// separated by `|` and consist of "literals" (escapes \n \r \t \\ \" \[ \] \xHH \uHHHH
/// \UHHHHHHHH), [classes] with ranges and negation, `.` for any character, names of rules,
/// (groups), and the quantifiers ? * + {n} {n,} {n,m}. A comment begins with `#`. A rule ends with
/// its line, except within a group, behind `|` or `::=`, and before a line that begins with `|`.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/sample/grammar.h"

namespace quire {

inline constexpr std::size_t kMaxGrammarBytes = 64 << 10;

/// Compiles a grammar. Errors: kInvalidArgument with the line for a text that is no grammar, lacks
/// a rule, is too large or describes no finite text; kUnimplemented for a rule that contains itself
/// before its first character (left recursion).
Result<std::shared_ptr<const Grammar>> text_grammar(std::string_view text);

}  // namespace quire
