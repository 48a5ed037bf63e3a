/// A parsed template. Nothing in it changes while it is rendered.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/jinja/value.h"

namespace quire::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<const Expression>;

enum class ExpressionKind : unsigned char {
  kConstant,   ///< constant
  kName,       ///< name
  kList,       ///< args
  kTuple,      ///< args
  kDict,       ///< args: key, value, key, value, ...
  kAttribute,  ///< args[0].name
  kItem,       ///< args[0][args[1]]
  kSlice,      ///< args[0][args[1]:args[2]:args[3]], each of the three maybe null
  kCall,       ///< args[0](args[1]..., named...)
  kFilter,     ///< args[0] | name(args[1]..., named...)
  kTest,       ///< args[0] is name(args[1]...)
  kNot,        ///< not args[0]
  kNegate,     ///< -args[0]
  kPositive,   ///< +args[0]
  kBinary,     ///< args[0] name args[1], name being + - * / // % **
  kConcat,     ///< args joined as text (~)
  kCompare,    ///< args[0] operators[0] args[1] operators[1] ...
  kAnd,
  kOr,
  kCondition,  ///< args[1] if args[0] else args[2], which may be null
  kSpread,     ///< *args[0] among the arguments of a call
  kSpreadDict  ///< **args[0]
};

struct Expression {
  ExpressionKind kind;
  int line = 0;
  int depth = 1;  ///< of the tree below: bounded, since every walk over it recurses
  std::string name;
  Value constant;
  std::vector<ExpressionPtr> args;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

enum class StatementKind : unsigned char {
  kText,       ///< text
  kOutput,     ///< {{ value }}
  kIf,         ///< value: body, else other
  kFor,        ///< names in value, filtered by condition: body, else other
  kSet,        ///< names = value, or name.member = value
  kSetBlock,   ///< names[0] = body, through the filters of `value` if there are any
  kMacro,      ///< names[0](parameters): body
  kCallBlock,  ///< value, a call, gets `caller`, a macro with `parameters` and `body`
  kFilter,     ///< body through the filters of `value`
  kScope,      ///< body, with names of its own (with)
  kGroup,      ///< body as it is (generation)
  kBreak,
  kContinue
};

struct Statement;
using Block = std::vector<Statement>;

struct Statement {
  StatementKind kind;
  int line = 0;
  Text text;
  ExpressionPtr value, condition;
  std::vector<std::string> names;
  std::string member;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;
  Block body, other;
};

/// The name under which the text a filter block collected reaches the filters' first argument.
inline constexpr const char* kFilteredName = " body";

struct Template {
  Block body;
};

}  // namespace quire::jinja
