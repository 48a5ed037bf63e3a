#include "engine/sample/json_string_part.h"

#include <utility>
#include <vector>

#include "engine/sample/automata/json_formats.h"
#include "engine/sample/pattern_automaton.h"
#include "engine/sample/regex_grammar.h"
#include "engine/sample/regex_tree.h"

namespace quire {
namespace {

using Part = Grammar::Part;

/// An expression that the strings must match, and the keyword it comes from.
struct Expression {
  std::string text;
  RegexUse use;
  const char* keyword;
};

Result<std::vector<Expression>> expressions_of(const JsonStrings& strings) {
  std::vector<Expression> out;
  if (strings.format) {
    std::string text = json_format_expression(*strings.format);
    if (text.empty())
      return Status(Code::kUnimplemented,
                    "format " + strings.format->substr(0, 64) +
                        " is not supported; these are: " + std::string(kJsonFormats) +
                        (strings.pattern ? "; leave it out, as the pattern holds" : ""),
                    "format");
    out.push_back({std::move(text), {.json_string = true}, "format"});
  }
  if (strings.pattern)
    out.push_back({*strings.pattern, {.json_string = true, .anywhere = true}, "pattern"});
  return out;
}

/// Returns the texts that match all expressions and have the length.
Result<Automaton> texts_of(const std::vector<Expression>& expressions, const JsonStrings& strings,
                           AutomatonBudget& budget) {
  const char* last = nullptr;
  const auto too_large = [&](const std::string& fix) {
    return Status(Code::kUnimplemented, "takes too many states; " + fix, last);
  };
  std::optional<Automaton> texts;
  for (const Expression& one : expressions) {
    last = one.keyword;
    auto tree = regex_tree(one.text, one.use);
    if (!tree.ok()) return tree.status().with_field(last);
    auto matching = regex_automaton(*tree, budget);
    if (matching && texts) matching = texts_of_both(*texts, *matching, budget);
    texts = std::move(matching);
    if (!texts) return too_large("use a shorter pattern, or one that begins with ^");
  }
  const auto [fewest, most] = lengths_of(*texts);
  if (strings.min > fewest || strings.max < most) {
    last = strings.max < most ? "maxLength" : "minLength";
    texts = texts_of_length(*texts, strings.min, strings.max, budget);
    if (!texts)
      return too_large("write the length in the pattern, as in ^[a-z]{1,40}$, or lower it");
  }
  if (texts->empty()) return Status::invalid(last, "leaves no text");
  return std::move(*texts);
}

}  // namespace

Result<Part> json_string_part(GrammarBuilder& builder, const JsonStrings& strings) {
  QUIRE_ASSIGN_OR_RETURN(const auto expressions, expressions_of(strings));
  const auto quoted = [&](Part inside) {
    return builder.sequence({builder.literal("\""), inside, builder.literal("\"")});
  };
  const bool any_length = strings.min == 0 && strings.max == Grammar::kUnbounded;
  if (any_length && expressions.size() == 1) {
    const Expression& only = expressions[0];
    const auto part = regex_part(builder, only.text, only.use);
    if (!part.ok()) return part.status().with_field(only.keyword);
    return quoted(*part);
  }
  QUIRE_ASSIGN_OR_RETURN(const Automaton texts, texts_of(expressions, strings, builder.budget()));
  auto bytes = bytes_of(texts, true, builder.budget());
  if (!bytes)
    return Status(Code::kUnimplemented, "takes too many states beside the other keywords",
                  expressions.back().keyword);
  return quoted(builder.automaton(std::move(*bytes)));
}

}  // namespace quire
