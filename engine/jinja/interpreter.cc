#include "engine/jinja/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/index.h"
#include "engine/jinja/builtins.h"
#include "engine/jinja/filters.h"
#include "engine/jinja/value_tests.h"

namespace quire::jinja {
namespace {

[[noreturn]] void undefined(const Value& value) {
  const Undefined* u = value.as_undefined();
  throw Error(u != nullptr && u->name != nullptr ? "'" + *u->name + "' is undefined"
                                                 : "a value is undefined");
}

/// Python's // and %: rounded towards minus infinity.
std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t q = a / b;
  return q - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  std::int64_t result = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result))
      throw Error("the number is too large");
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
      throw Error("the number is too large");
  }
  return result;
}

Value integer_arithmetic(const std::string& op, std::int64_t a, std::int64_t b) {
  std::int64_t r = 0;
  if (op == "+" ? __builtin_add_overflow(a, b, &r)
                : (op == "-" ? __builtin_sub_overflow(a, b, &r)
                             : op == "*" && __builtin_mul_overflow(a, b, &r))) {
    throw Error("the number is too large");
  }
  if (op == "+" || op == "-" || op == "*") return r;
  if (op == "**") return integer_power(a, b);
  if (b == 0) throw Error("division by zero");
  if (op == "/") return static_cast<double>(a) / static_cast<double>(b);
  if (a == std::numeric_limits<std::int64_t>::min() && b == -1)
    throw Error("the number is too large");
  const std::int64_t q = floor_divide(a, b);
  return op == "//" ? q : a - q * b;
}

Value float_arithmetic(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) throw Error("division by zero");
  if (op == "/") return a / b;
  if (op == "//") return std::floor(a / b);
  return a - b * std::floor(a / b);
}

}  // namespace

struct Interpreter::Scope {
  Scope* parent = nullptr;
  std::vector<std::pair<std::string, Value>> names;
  bool kept = false;  ///< a macro defined below may look into it later

  const Value* find(const std::string& name) const {
    for (const auto& [key, value] : names) {
      if (key == name) return &value;
    }
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : names) {
      if (key != name) continue;
      old = std::move(value);
      return;
    }
    names.emplace_back(name, std::move(value));
  }
};

class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& run) : depth_(run.depth_) {
    if (depth_ >= run.bounds_.depth)
      throw LimitError("macros or expressions call each other too deep");
    ++depth_;
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

Interpreter::Interpreter(const Bounds& bounds) : left_(bounds), bounds_(bounds) {}

Interpreter::~Interpreter() {
  for (const auto& space : namespaces_) space->items.clear();
}

Text Interpreter::render(const Template& source,
                         std::vector<std::pair<std::string, Value>> inputs) {
  auto globals = std::make_unique<Scope>();
  globals->names = global_functions();
  for (auto& [name, value] : inputs) globals->set(name, std::move(value));
  auto top = std::make_unique<Scope>();
  top->parent = globals.get();
  kept_.push_back(std::move(globals));
  kept_.push_back(std::move(top));
  Scope& scope = *kept_.back();
  Text out;
  (void)execute(source.body, scope, out);  // the parser lets no break stand outside of a loop
  return out;
}

void Interpreter::step(std::uint64_t count) {
  if (left_.steps < count) {
    throw LimitError("it takes more than " + std::to_string(bounds_.steps) + " steps to render");
  }
  left_.steps -= count;
}

void Interpreter::charge(std::uint64_t size) {
  if (left_.text_bytes < size) {
    throw LimitError("it makes more than " + std::to_string(bounds_.text_bytes) +
                     " bytes of text on the way");
  }
  left_.text_bytes -= size;
}

std::size_t Interpreter::room() const { return left_.text_bytes; }

Value Interpreter::text(Text text) {
  charge(text.size());
  return Value(std::move(text));
}

Text Interpreter::str(const Value& value) {
  Text text = to_text(value, room());
  charge(text.size());
  return text;
}

std::shared_ptr<Dict> Interpreter::new_namespace() {
  step(16);  // kept until the end
  auto space = std::make_shared<Dict>();
  space->is_namespace = true;
  namespaces_.push_back(space);
  return space;
}

std::unique_ptr<Interpreter::Scope> Interpreter::new_scope(Scope& parent) {
  auto scope = std::make_unique<Scope>();
  scope->parent = &parent;
  return scope;
}

void Interpreter::leave(std::unique_ptr<Scope> scope) {
  if (scope->kept) kept_.push_back(std::move(scope));
}

// ---- statements

Interpreter::Flow Interpreter::execute(const Block& block, Scope& scope, Text& out) {
  for (const Statement& s : block) {
    const Flow flow = execute(s, scope, out);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::execute(const Statement& s, Scope& scope, Text& out) {
  const Deeper deeper(*this);
  step();
  line_ = s.line;
  switch (s.kind) {
    case StatementKind::kText:
      charge(s.text.size());
      out.append(s.text);
      if (out.size() > bounds_.output_bytes) throw LimitError("the text it writes is too long");
      break;
    case StatementKind::kOutput:
      emit(evaluate(*s.value, scope), out);
      break;
    case StatementKind::kIf:
      return execute(evaluate(*s.value, scope).truthy() ? s.body : s.other, scope, out);
    case StatementKind::kFor:
      return run_for(s, scope, out);
    case StatementKind::kSet:
      run_set(s, scope);
      break;
    case StatementKind::kSetBlock:
    case StatementKind::kFilter:
      run_filtered(s, scope, out);
      break;
    case StatementKind::kMacro:
      for (Scope* at = &scope; at != nullptr; at = at->parent) at->kept = true;
      scope.set(s.names.front(), macro(s, s.names.front(), scope));
      break;
    case StatementKind::kCallBlock:
      run_call_block(s, scope, out);
      break;
    case StatementKind::kScope:
      return run_scope(s, scope, out);
    case StatementKind::kGroup:
      return execute(s.body, scope, out);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

void Interpreter::emit(const Value& value, Text& out) {
  if (const Text* text = value.as_text()) {
    charge(text->size());
    out.append(*text);
  } else {
    out.append(str(value));
  }
  if (out.size() > bounds_.output_bytes) throw LimitError("the text it writes is too long");
}

Text Interpreter::collect(const Block& block, Scope& scope) {
  Text out;
  (void)execute(block, scope, out);
  return out;
}

void Interpreter::bind(const std::vector<std::string>& names, const Value& value, Scope& scope) {
  if (names.size() == 1) return scope.set(names.front(), value);
  const std::vector<Value> parts = items(value);
  if (parts.size() != names.size()) {
    throw Error(std::to_string(names.size()) + " names cannot take " +
                std::to_string(parts.size()) + " values");
  }
  for (std::size_t i = 0; i < names.size(); ++i) scope.set(names[i], parts[i]);
}

Interpreter::Flow Interpreter::run_for(const Statement& s, Scope& scope, Text& out) {
  auto state = std::make_shared<LoopState>();
  state->items = items(evaluate(*s.value, scope));
  std::unique_ptr<Scope> inner = new_scope(scope);
  if (s.condition != nullptr) {
    std::vector<Value> chosen;
    for (const Value& item : state->items) {
      step();
      bind(s.names, item, *inner);
      if (evaluate(*s.condition, *inner).truthy()) chosen.push_back(item);
    }
    state->items = std::move(chosen);
  }
  if (state->items.empty()) return execute(s.other, scope, out);
  for (const Value& item : state->items) state->depth = std::max(state->depth, item.depth() + 1);
  for (std::size_t i = 0; i < state->items.size(); ++i) {
    step();
    state->index0 = i;
    inner->names.clear();
    inner->set("loop", Value(state));
    bind(s.names, state->items[i], *inner);
    if (execute(s.body, *inner, out) == Flow::kBreak) break;
  }
  leave(std::move(inner));
  return Flow::kNext;
}

void Interpreter::run_set(const Statement& s, Scope& scope) {
  const Value value = evaluate(*s.value, scope);
  if (s.member.empty()) return bind(s.names, value, scope);
  Dict* space = lookup(s.names.front(), scope).as_dict();
  if (space == nullptr || !space->is_namespace) {
    throw Error("'" + s.names.front() + "' is no namespace: its members cannot be set");
  }
  step(space->items.size() / 16);
  space->set(Value::text(s.member), value);
}

void Interpreter::run_filtered(const Statement& s, Scope& scope, Text& out) {
  std::unique_ptr<Scope> inner = new_scope(scope);
  Value value = text(collect(s.body, *inner));
  if (s.value != nullptr) {
    inner->set(kFilteredName, value);
    value = evaluate(*s.value, *inner);
  }
  leave(std::move(inner));
  if (s.kind == StatementKind::kFilter) return emit(value, out);
  scope.set(s.names.front(), value);
}

Interpreter::Flow Interpreter::run_scope(const Statement& s, Scope& scope, Text& out) {
  std::unique_ptr<Scope> inner = new_scope(scope);
  for (const auto& [name, value] : s.parameters) inner->set(name, evaluate(*value, scope));
  const Flow flow = execute(s.body, *inner, out);
  leave(std::move(inner));
  return flow;
}

void Interpreter::run_call_block(const Statement& s, Scope& scope, Text& out) {
  for (Scope* at = &scope; at != nullptr; at = at->parent) at->kept = true;
  const Value function = evaluate(*s.value->args.front(), scope);
  Arguments args = arguments(*s.value, 1, scope);
  args.named.emplace_back("caller", macro(s, "caller", scope));
  emit(call(function, args), out);
}

Value Interpreter::macro(const Statement& s, std::string name, Scope& scope) {
  auto callable = std::make_shared<Callable>();
  callable->name = name;
  callable->call = [&s, name = std::move(name), &scope](Interpreter& run, Arguments& args) {
    return run.call_macro(s, name, scope, args);
  };
  return Value(std::shared_ptr<const Callable>(std::move(callable)));
}

Value Interpreter::call_macro(const Statement& s, const std::string& name, Scope& scope,
                              Arguments& args) {
  const Deeper deeper(*this);
  std::unique_ptr<Scope> inner = new_scope(scope);
  if (args.positional.size() > s.parameters.size())
    throw Error("macro " + name + "() was given too many arguments");
  for (std::size_t i = 0; i < s.parameters.size(); ++i) {
    const std::string& parameter = s.parameters[i].first;
    const ExpressionPtr& fallback = s.parameters[i].second;
    const auto given = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& item) { return item.first == parameter; });
    if (i < args.positional.size()) {
      inner->set(parameter, args.positional[i]);
    } else if (given != args.named.end()) {
      inner->set(parameter, given->second);
    } else {
      inner->set(parameter,
                 fallback != nullptr ? evaluate(*fallback, *inner) : Value::undefined(parameter));
    }
  }
  for (const auto& given : args.named) {
    const std::string& key = given.first;
    const bool known = std::any_of(s.parameters.begin(), s.parameters.end(),
                                   [&](const auto& p) { return p.first == key; });
    if (!known && key != "caller")
      throw Error("macro " + name + "() has no argument '" + key.substr(0, 80) + "'");
    if (key == "caller") inner->set(key, given.second);
  }
  const int line = line_;
  Value result = text(collect(s.body, *inner));
  line_ = line;
  leave(std::move(inner));
  return result;
}

// ---- expressions

Value Interpreter::lookup(const std::string& name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->parent) {
    if (const Value* value = at->find(name)) return *value;
  }
  return Value::undefined(name);
}

Value Interpreter::evaluate(const Expression& e, Scope& scope) {
  const Deeper deeper(*this);
  step();
  switch (e.kind) {
    case ExpressionKind::kConstant:
      return e.constant;
    case ExpressionKind::kName:
      return lookup(e.name, scope);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_list(e, scope);
    case ExpressionKind::kDict:
      return evaluate_dict(e, scope);
    case ExpressionKind::kAttribute:
      return attribute(evaluate(*e.args[0], scope), e.name);
    case ExpressionKind::kItem: {
      const Value object = evaluate(*e.args[0], scope);
      return item(object, evaluate(*e.args[1], scope));
    }
    case ExpressionKind::kSlice:
      return evaluate_slice(e, scope);
    case ExpressionKind::kCall:
      return evaluate_call(e, scope);
    case ExpressionKind::kFilter:
      return evaluate_filter(e, scope);
    case ExpressionKind::kTest:
      return evaluate_test(e, scope);
    case ExpressionKind::kNot:
      return !evaluate(*e.args[0], scope).truthy();
    case ExpressionKind::kNegate:
    case ExpressionKind::kPositive:
      return evaluate_negate(e, scope);
    case ExpressionKind::kBinary:
      return evaluate_binary(e, scope);
    case ExpressionKind::kConcat:
      return evaluate_concat(e, scope);
    case ExpressionKind::kCompare:
      return evaluate_compare(e, scope);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr: {
      Value left = evaluate(*e.args[0], scope);
      if (left.truthy() == (e.kind == ExpressionKind::kOr)) return left;
      return evaluate(*e.args[1], scope);
    }
    case ExpressionKind::kCondition:
      if (evaluate(*e.args[0], scope).truthy()) return evaluate(*e.args[1], scope);
      return e.args[2] != nullptr ? evaluate(*e.args[2], scope) : Value();
    case ExpressionKind::kSpread:
    case ExpressionKind::kSpreadDict:
      break;  // read by arguments()
  }
  throw Error("* stands only before an argument of a call");
}

Value Interpreter::evaluate_list(const Expression& e, Scope& scope) {
  std::vector<Value> values;
  for (const ExpressionPtr& arg : e.args) values.push_back(evaluate(*arg, scope));
  return Value::list(std::move(values), e.kind == ExpressionKind::kTuple);
}

Value Interpreter::evaluate_dict(const Expression& e, Scope& scope) {
  auto dict = std::make_shared<Dict>();
  for (std::size_t i = 0; i + 1 < e.args.size(); i += 2) {
    Value key = evaluate(*e.args[i], scope);
    step(dict->items.size() / 16);
    dict->set(std::move(key), evaluate(*e.args[i + 1], scope));
  }
  return Value(std::move(dict));
}

Arguments Interpreter::arguments(const Expression& e, std::size_t first, Scope& scope) {
  Arguments args;
  for (std::size_t i = first; i < e.args.size(); ++i) {
    const Expression& arg = *e.args[i];
    if (arg.kind == ExpressionKind::kSpread) {
      for (Value& value : items(evaluate(*arg.args[0], scope)))
        args.positional.push_back(std::move(value));
    } else if (arg.kind == ExpressionKind::kSpreadDict) {
      const Value values = evaluate(*arg.args[0], scope);
      if (values.as_dict() == nullptr) throw Error("** needs a dictionary");
      for (const auto& [key, value] : values.as_dict()->items)
        args.named.emplace_back(str(key).bytes, value);
    } else {
      args.positional.push_back(evaluate(arg, scope));
    }
  }
  for (const auto& [name, value] : e.named) args.named.emplace_back(name, evaluate(*value, scope));
  return args;
}

Value Interpreter::evaluate_call(const Expression& e, Scope& scope) {
  const Expression& callee = *e.args[0];
  if (callee.kind != ExpressionKind::kAttribute) {
    const Value function = evaluate(callee, scope);
    Arguments args = arguments(e, 1, scope);
    return call(function, args);
  }
  const Value object = evaluate(*callee.args[0], scope);
  if (has_method(object, callee.name)) {
    Arguments args = arguments(e, 1, scope);
    step(1 + object.weight() / 16);
    return call_method(*this, object, callee.name, args);
  }
  const Value function = attribute(object, callee.name);
  if (function.as_callable() == nullptr && object.is_undefined()) undefined(object);
  if (function.as_callable() == nullptr) {
    throw Error("'" + object.type_name() + "' has no method '" + callee.name.substr(0, 80) +
                "' for templates");
  }
  Arguments args = arguments(e, 1, scope);
  return call(function, args);
}

Value Interpreter::call(const Value& function, Arguments& args) {
  const Callable* callable = function.as_callable();
  if (callable == nullptr && function.is_undefined()) undefined(function);
  if (callable == nullptr)
    throw Error("a value of type " + function.type_name() + " cannot be called");
  return callable->call(*this, args);
}

Value Interpreter::evaluate_filter(const Expression& e, Scope& scope) {
  const Value subject = evaluate(*e.args[0], scope);
  Arguments args = arguments(e, 1, scope);
  step(1 + subject.weight() / 16);
  return apply_filter(*this, e.name, subject, args);
}

Value Interpreter::evaluate_test(const Expression& e, Scope& scope) {
  const Value subject = evaluate(*e.args[0], scope);
  Arguments args = arguments(e, 1, scope);
  return apply_test(*this, e.name, subject, args);
}

Value Interpreter::evaluate_concat(const Expression& e, Scope& scope) {
  Text joined;
  for (const ExpressionPtr& arg : e.args) joined.append(str(evaluate(*arg, scope)));
  return Value(std::move(joined));
}

bool Interpreter::same(const Value& a, const Value& b) {
  step(1 + std::min(a.weight(), b.weight()));
  return equal(a, b);
}

bool Interpreter::contains(const Value& container, const Value& value) {
  if (const Text* text = container.as_text()) {
    if (value.as_text() == nullptr)
      throw Error("only a text can be in a text, not a value of type " + value.type_name());
    step(container.weight());
    return text->bytes.find(value.as_text()->bytes) != std::string::npos;
  }
  if (const Dict* dict = container.as_dict()) {
    step(1 + dict->items.size() / 16);
    return dict->find(value) != nullptr;
  }
  if (const List* list = container.as_list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return same(item, value); });
  }
  if (container.is_undefined()) return false;
  throw Error("nothing can be in a value of type " + container.type_name());
}

Value Interpreter::evaluate_compare(const Expression& e, Scope& scope) {
  Value left = evaluate(*e.args[0], scope);
  for (std::size_t i = 0; i < e.operators.size(); ++i) {
    const std::string& op = e.operators[i];
    Value right = evaluate(*e.args[i + 1], scope);
    bool holds = false;
    if (op == "in" || op == "not in") {
      holds = contains(right, left) == (op == "in");
    } else if (op == "==" || op == "!=") {
      holds = same(left, right) == (op == "==");
    } else {
      if (left.is_undefined()) undefined(left);
      if (right.is_undefined()) undefined(right);
      step(1 + std::min(left.weight(), right.weight()));
      const int order = compare(left, right);
      holds = op == "<" ? order < 0
                        : (op == ">" ? order > 0 : (op == "<=" ? order <= 0 : order >= 0));
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::add(const Value& a, const Value& b) {
  if (a.as_text() != nullptr && b.as_text() != nullptr) {
    charge(a.as_text()->size() + b.as_text()->size());
    Text joined = *a.as_text();
    joined.append(*b.as_text());
    return Value(std::move(joined));
  }
  if (a.as_list() != nullptr && b.as_list() != nullptr) {
    std::vector<Value> all = a.as_list()->items;
    const auto& more = b.as_list()->items;
    step(all.size() + more.size());
    all.insert(all.end(), more.begin(), more.end());
    return Value::list(std::move(all), a.as_list()->tuple);
  }
  throw Error("values of type " + a.type_name() + " and " + b.type_name() + " cannot be added");
}

Value Interpreter::repeat(const Value& sequence, std::int64_t count) {
  const auto times = static_cast<std::uint64_t>(std::max<std::int64_t>(count, 0));
  if (const Text* one = sequence.as_text()) {
    if (one->empty() || times == 0) return Value(Text());
    if (times > room() / one->size()) charge(std::numeric_limits<std::uint64_t>::max());
    step(times);
    charge(times * one->size());
    Text all;
    for (std::uint64_t i = 0; i < times; ++i) all.append(*one);
    return Value(std::move(all));
  }
  const List& one = *sequence.as_list();
  std::vector<Value> all;
  if (!one.items.empty() && times > left_.steps / one.items.size())
    step(std::numeric_limits<std::uint64_t>::max());
  step(times * one.items.size());
  for (std::uint64_t i = 0; i < times && !one.items.empty(); ++i) {
    all.insert(all.end(), one.items.begin(), one.items.end());
  }
  return Value::list(std::move(all), one.tuple);
}

Value Interpreter::evaluate_binary(const Expression& e, Scope& scope) {
  const Value a = evaluate(*e.args[0], scope), b = evaluate(*e.args[1], scope);
  if (a.is_undefined()) undefined(a);
  if (a.as_text() != nullptr && e.name == "%") return format_percent(*this, *a.as_text(), b);
  if (b.is_undefined()) undefined(b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_arithmetic(e.name, a.to_double(), b.to_double());
    return integer_arithmetic(e.name, a.to_int(""), b.to_int(""));
  }
  if (e.name == "+") return add(a, b);
  const auto sequence = [](const Value& v) {
    return v.as_text() != nullptr || v.as_list() != nullptr;
  };
  if (e.name == "*" && sequence(a) && (b.is_int() || b.is_bool())) return repeat(a, b.to_int(""));
  if (e.name == "*" && sequence(b) && (a.is_int() || a.is_bool())) return repeat(b, a.to_int(""));
  throw Error("'" + e.name + "' does not work between " + a.type_name() + " and " + b.type_name());
}

Value Interpreter::evaluate_negate(const Expression& e, Scope& scope) {
  const Value value = evaluate(*e.args[0], scope);
  if (value.is_undefined()) undefined(value);
  if (!value.is_number()) throw Error("a value of type " + value.type_name() + " has no sign");
  if (e.kind == ExpressionKind::kPositive)
    return value.is_float() ? Value(value.to_double()) : Value(value.to_int(""));
  return value.is_float() ? Value(-value.to_double())
                          : integer_arithmetic("-", 0, value.to_int(""));
}

Value Interpreter::evaluate_slice(const Expression& e, Scope& scope) {
  const Value object = evaluate(*e.args[0], scope);
  Value parts[3];
  for (int i = 0; i < 3; ++i) {
    if (e.args[at(i) + 1] != nullptr) {
      parts[i] = evaluate(*e.args[at(i) + 1], scope);
      if (parts[i].is_none()) parts[i] = Value();
    }
  }
  if (object.is_undefined()) undefined(object);
  const Text* text = object.as_text();
  const List* list = object.as_list();
  if (text == nullptr && list == nullptr)
    throw Error("a value of type " + object.type_name() + " has no slices");
  step(1 + object.weight());
  const auto size = static_cast<std::int64_t>(text != nullptr ? num_characters(text->bytes)
                                                              : list->items.size());
  const std::int64_t by = parts[2].is_undefined() ? 1 : parts[2].to_int("the step of a slice");
  if (by == 0) throw Error("the step of a slice must not be 0");
  const auto place = [&](const Value& v, std::int64_t fallback) {
    if (v.is_undefined()) return fallback;
    std::int64_t i = v.to_int("the bound of a slice");
    if (i < 0) i = std::max(i, -size - 1) + size;
    return by > 0 ? std::clamp<std::int64_t>(i, 0, size)
                  : std::clamp<std::int64_t>(i, -1, size - 1);
  };
  const std::int64_t from = place(parts[0], by > 0 ? 0 : size - 1),
                     to = place(parts[1], by > 0 ? size : -1);
  if (text != nullptr && by == 1) {
    if (to <= from) return Value(Text());
    const std::size_t begin = offset_of_character(text->bytes, to_size(from));
    const std::size_t length = offset_of_character(std::string_view(text->bytes).substr(begin),
                                                   to_size(to - from));
    return this->text(text->substr(begin, length));
  }
  const std::vector<Value> all = items(object);
  std::vector<Value> chosen;
  for (std::int64_t i = from; by > 0 ? i < to : i > to;) {
    chosen.push_back(all[at(i)]);
    if (__builtin_add_overflow(i, by, &i)) break;
  }
  if (text == nullptr) return Value::list(std::move(chosen), list->tuple);
  Text joined;
  for (const Value& one : chosen) joined.append(*one.as_text());
  return this->text(std::move(joined));
}

Value Interpreter::attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) undefined(object);
  if (const LoopState* loop = object.as_loop()) {
    const auto n = count_of(loop->items), i = static_cast<std::int64_t>(loop->index0);
    if (name == "index") return i + 1;
    if (name == "index0") return i;
    if (name == "first") return i == 0;
    if (name == "last") return i + 1 == n;
    if (name == "length") return n;
    if (name == "revindex") return n - i;
    if (name == "revindex0") return n - i - 1;
    if (name == "depth") return std::int64_t{1};  // Jinja counts recursive loops only
    if (name == "depth0") return std::int64_t{0};
    if (name == "previtem")
      return i > 0 ? loop->items[loop->index0 - 1] : Value::undefined("previtem");
    if (name == "nextitem")
      return i + 1 < n ? loop->items[loop->index0 + 1] : Value::undefined("nextitem");
    if (name == "cycle") {
      auto callable = std::make_shared<Callable>();
      callable->name = "cycle";
      callable->call = [at = loop->index0](Interpreter&, Arguments& args) {
        if (args.positional.empty()) throw Error("loop.cycle() needs values");
        return args.positional[at % args.positional.size()];
      };
      return Value(std::shared_ptr<const Callable>(std::move(callable)));
    }
    return Value::undefined("loop." + std::string(name));
  }
  if (has_method(object, name)) {
    auto callable = std::make_shared<Callable>();
    callable->name = std::string(name);
    callable->depth = object.depth() + 1;
    callable->call = [object, method = std::string(name)](Interpreter& run, Arguments& args) {
      run.step(1 + object.weight() / 16);
      return call_method(run, object, method, args);
    };
    return Value(std::shared_ptr<const Callable>(std::move(callable)));
  }
  if (const Dict* dict = object.as_dict()) {
    step(dict->items.size() / 16);
    if (const Value* value = dict->find(name)) return *value;
  }
  return Value::undefined(std::string(name));
}

Value Interpreter::item(const Value& object, const Value& key) {
  if (object.is_undefined()) undefined(object);
  if (const Dict* dict = object.as_dict()) {
    step(dict->items.size() / 16);
    if (const Value* value = dict->find(key)) return *value;
    return Value::undefined(key.as_text() != nullptr ? key.as_text()->bytes.substr(0, 80) : "item");
  }
  if (key.as_text() != nullptr && object.as_loop() != nullptr)
    return attribute(object, key.as_text()->bytes);
  if (!key.is_int() && !key.is_bool()) return Value::undefined("item");
  std::int64_t i = key.to_int("");
  if (const List* list = object.as_list()) {
    const auto n = count_of(list->items);
    if (i < 0) i += n;
    return i >= 0 && i < n ? list->items[at(i)] : Value::undefined("item");
  }
  if (const Text* text = object.as_text()) {
    step(object.weight());
    const auto n = static_cast<std::int64_t>(num_characters(text->bytes));
    if (i < 0) i += n;
    if (i < 0 || i >= n) return Value::undefined("item");
    const std::size_t begin = offset_of_character(text->bytes, to_size(i));
    return Value(text->substr(begin, character_at(text->bytes, begin).end - begin));
  }
  return Value::undefined("item");
}

std::vector<Value> Interpreter::items(const Value& value) {
  if (const List* list = value.as_list()) {
    step(list->items.size() / 4);
    return list->items;
  }
  std::vector<Value> all;
  if (const Dict* dict = value.as_dict(); dict != nullptr && !dict->is_namespace) {
    step(dict->items.size() / 4);
    for (const auto& [key, item] : dict->items) all.push_back(key);
    return all;
  }
  if (const Text* text = value.as_text()) {
    step(text->size());
    for (std::size_t at = 0; at < text->size();) {
      const Character c = character_at(text->bytes, at);
      all.emplace_back(text->substr(c.begin, c.end - c.begin));
      at = c.end;
    }
    return all;
  }
  if (value.is_undefined()) return all;
  throw Error("a value of type " + value.type_name() + " cannot be gone over");
}

}  // namespace quire::jinja
