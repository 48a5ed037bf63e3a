/// Regular expressions as grammars.
///
/// The subset: literals and escapes (\d \w \s \D \W \S \t \n \r \f \v \0 \xHH \uHHHH \u{H...} and
/// escaped punctuation), `.` (any character but line breaks), classes [...] with ranges and
/// negation, groups (...), (?:...) and (?<name>...), `|`, and the quantifiers ? * + {n} {n,} {n,m},
/// also lazy, which makes no difference here. ^ and $ stand at the ends of the expression or of an
/// alternative of it. Look-ahead, (?=...) and (?!...), stands at the beginning of the expression,
/// or after its ^. Refused: other look-around, back references, \b, flags, \p{...}, possessive and
/// nested quantifiers. Characters are Unicode code points.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "engine/sample/grammar.h"

namespace quire {

inline constexpr std::size_t kMaxRegexBytes = 8 << 10;

/// Which texts an expression describes, and how they are written.
struct RegexUse {
  /// The text is the inside of a JSON string: '"', '\' and control characters are escaped.
  bool json_string = false;
  /// An expression without ^ or $ may be anywhere in the text, as JSON Schema's `pattern` has it.
  bool anywhere = false;
};

/// Builds the part of the texts that match the whole expression. Errors: kUnimplemented for what
/// the subset lacks, kInvalidArgument for an invalid expression or one too large.
Result<Grammar::Part> regex_part(GrammarBuilder& builder, std::string_view regex, RegexUse use);

/// Returns the grammar of the texts that match the whole expression. Errors: as regex_part(), and
/// kInvalidArgument for an expression that matches nothing.
Result<std::shared_ptr<const Grammar>> regex_grammar(std::string_view regex);

}  // namespace quire
