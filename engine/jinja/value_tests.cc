#include "engine/jinja/value_tests.h"

#include <algorithm>

#include "engine/jinja/filters.h"
#include "engine/jinja/interpreter.h"
#include "engine/jinja/text_methods.h"

namespace quire::jinja {
namespace {

using Test = bool (*)(Interpreter&, const Value&, Arguments&);

bool test_defined(Interpreter&, const Value& v, Arguments&) { return !v.is_undefined(); }
bool test_undefined(Interpreter&, const Value& v, Arguments&) { return v.is_undefined(); }
bool test_none(Interpreter&, const Value& v, Arguments&) { return v.is_none(); }
bool test_string(Interpreter&, const Value& v, Arguments&) { return v.as_text() != nullptr; }
bool test_number(Interpreter&, const Value& v, Arguments&) { return v.is_number(); }
bool test_integer(Interpreter&, const Value& v, Arguments&) { return v.is_int(); }
bool test_float(Interpreter&, const Value& v, Arguments&) { return v.is_float(); }
bool test_boolean(Interpreter&, const Value& v, Arguments&) { return v.is_bool(); }
bool test_true(Interpreter&, const Value& v, Arguments&) { return v.is_bool() && v.truthy(); }
bool test_false(Interpreter&, const Value& v, Arguments&) { return v.is_bool() && !v.truthy(); }
bool test_mapping(Interpreter&, const Value& v, Arguments&) {
  return v.as_dict() != nullptr && !v.as_dict()->is_namespace;
}
bool test_iterable(Interpreter& run, const Value& v, Arguments& args) {
  return v.as_text() != nullptr || v.as_list() != nullptr || v.is_undefined() ||
         test_mapping(run, v, args);
}
bool test_sequence(Interpreter& run, const Value& v, Arguments& args) {
  return test_iterable(run, v, args);
}
bool test_callable(Interpreter&, const Value& v, Arguments&) { return v.as_callable() != nullptr; }
bool test_odd(Interpreter&, const Value& v, Arguments&) {
  return v.to_int("the value of the test odd") % 2 != 0;
}
bool test_even(Interpreter&, const Value& v, Arguments&) {
  return v.to_int("the value of the test even") % 2 == 0;
}
bool test_divisibleby(Interpreter&, const Value& v, Arguments& args) {
  const std::int64_t by = args.take(0, "num").to_int("the argument of divisibleby");
  if (by == 0 || by == -1) return by == -1;
  return v.to_int("the value of the test divisibleby") % by == 0;
}
bool test_in(Interpreter& run, const Value& v, Arguments& args) {
  return run.contains(args.take(0, "seq"), v);
}
bool test_equal(Interpreter& run, const Value& v, Arguments& args) {
  return run.same(v, args.take(0, "other"));
}
bool test_unequal(Interpreter& run, const Value& v, Arguments& args) {
  return !run.same(v, args.take(0, "other"));
}
int ordered(Interpreter& run, const Value& v, Arguments& args) {
  const Value other = args.take(0, "other");
  run.step(1 + std::min(v.weight(), other.weight()));
  return compare(v, other);
}
bool test_less(Interpreter& run, const Value& v, Arguments& args) {
  return ordered(run, v, args) < 0;
}
bool test_greater(Interpreter& run, const Value& v, Arguments& args) {
  return ordered(run, v, args) > 0;
}
bool test_at_most(Interpreter& run, const Value& v, Arguments& args) {
  return ordered(run, v, args) <= 0;
}
bool test_at_least(Interpreter& run, const Value& v, Arguments& args) {
  return ordered(run, v, args) >= 0;
}
bool test_lower(Interpreter& run, const Value& v, Arguments&) {
  const Text text = run.str(v);
  return changed_case(text, Case::kLower).bytes == text.bytes &&
         changed_case(text, Case::kUpper).bytes != text.bytes;
}
bool test_upper(Interpreter& run, const Value& v, Arguments&) {
  const Text text = run.str(v);
  return changed_case(text, Case::kUpper).bytes == text.bytes &&
         changed_case(text, Case::kLower).bytes != text.bytes;
}
bool test_filter(Interpreter&, const Value& v, Arguments&) {
  return v.as_text() != nullptr && is_filter(v.as_text()->bytes);
}
bool test_test(Interpreter&, const Value& v, Arguments&) {
  return v.as_text() != nullptr && is_test(v.as_text()->bytes);
}

struct NamedTest {
  std::string_view name;
  Test call;
};
constexpr NamedTest kTests[] = {
    {"!=", test_unequal},
    {"<", test_less},
    {"<=", test_at_most},
    {"==", test_equal},
    {">", test_greater},
    {">=", test_at_least},
    {"boolean", test_boolean},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisibleby},
    {"eq", test_equal},
    {"equalto", test_equal},
    {"even", test_even},
    {"false", test_false},
    {"filter", test_filter},
    {"float", test_float},
    {"ge", test_at_least},
    {"greaterthan", test_greater},
    {"gt", test_greater},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_at_most},
    {"lessthan", test_less},
    {"lower", test_lower},
    {"lt", test_less},
    {"mapping", test_mapping},
    {"ne", test_unequal},
    {"none", test_none},
    {"number", test_number},
    {"odd", test_odd},
    {"sameas", test_equal},
    {"sequence", test_sequence},
    {"string", test_string},
    {"test", test_test},
    {"true", test_true},
    {"undefined", test_undefined},
    {"upper", test_upper},
};

}  // namespace

bool is_test(std::string_view name) {
  return std::any_of(std::begin(kTests), std::end(kTests),
                     [&](const auto& t) { return t.name == name; });
}

bool apply_test(Interpreter& run, std::string_view name, const Value& subject, Arguments& args) {
  for (const NamedTest& test : kTests) {
    if (test.name == name) return test.call(run, subject, args);
  }
  throw Error("there is no test '" + std::string(name.substr(0, 80)) + "'");
}

}  // namespace quire::jinja
