/// The values a template computes with: Python's, as far as chat templates meet them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/jinja/text.h"

namespace quire::jinja {

/// What is wrong with a template or its input. Thrown and caught inside this folder only.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// A bound was met: the template asks for too much.
class LimitError : public Error {
 public:
  using Error::Error;
};
/// The template itself refused its input: raise_exception().
class RaisedError : public Error {
 public:
  using Error::Error;
};

class Value;
class Interpreter;

struct List;
struct Dict;
struct Callable;
struct LoopState;

/// The value of a name or a member that does not exist.
struct Undefined {
  std::shared_ptr<const std::string> name;
};
struct None {};

/// Lists and dictionaries are immutable once they are values, as in the sandbox templates are
/// written for; only namespaces change, and those belong to the interpreter. Cheap to copy.
class Value {
 public:
  Value() : v_(Undefined{}) {}
  Value(None none) : v_(none) {}                // NOLINT: implicit on purpose
  Value(bool b) : v_(b) {}                      // NOLINT
  Value(std::int64_t i) : v_(i) {}              // NOLINT
  Value(double d) : v_(d) {}                    // NOLINT
  Value(Text text);                             // NOLINT
  Value(std::shared_ptr<const List> list);      // NOLINT
  Value(std::shared_ptr<Dict> dict);            // NOLINT
  Value(std::shared_ptr<const Callable> call);  // NOLINT
  Value(std::shared_ptr<LoopState> loop);       // NOLINT
  Value(const char*) = delete;
  static Value text(std::string_view text, Mark mark = kTemplateMark);
  static Value undefined(std::string name);
  static Value list(std::vector<Value> items, bool tuple = false);

  bool is_undefined() const { return std::holds_alternative<Undefined>(v_); }
  bool is_none() const { return std::holds_alternative<None>(v_); }
  bool is_bool() const { return std::holds_alternative<bool>(v_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(v_); }
  bool is_float() const { return std::holds_alternative<double>(v_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }

  /// Null where the value is of another kind.
  const Text* as_text() const;
  const List* as_list() const;
  Dict* as_dict() const;
  const Callable* as_callable() const;
  LoopState* as_loop() const;
  const Undefined* as_undefined() const { return std::get_if<Undefined>(&v_); }
  /// bool and int; throws Error naming `what` for all else.
  std::int64_t to_int(std::string_view what) const;
  double to_double() const;  ///< of a number

  bool truthy() const;
  /// "str", "dict", ...: as Python names it, for messages.
  std::string type_name() const;
  /// How deep lists and dictionaries nest in it (0 for all else), and how much work it is to read.
  int depth() const;
  std::size_t weight() const;

 private:
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const Text>,
               std::shared_ptr<const List>, std::shared_ptr<Dict>, std::shared_ptr<const Callable>,
               std::shared_ptr<LoopState>>
      v_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;
  std::size_t weight = 1;
};

/// Keeps the order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  bool is_namespace = false;
  int depth = 1;
  std::size_t weight = 1;  ///< grows with every set()

  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `index`, or called `name`, taken out; undefined if it was not given.
  Value take(std::size_t index, std::string_view name);
  /// Throws where arguments are left over: unknown names, or more than `most` by position.
  void done(std::string_view function, std::size_t most) const;

 private:
  std::vector<std::string> taken_;
};

struct Callable {
  std::string name;
  std::function<Value(Interpreter&, Arguments&)> call;
  int depth = 0;  ///< of what it holds
};

/// The variable `loop` of one for statement.
struct LoopState {
  std::size_t index0 = 0;
  std::vector<Value> items;
  int depth = 1;  ///< as of a list of the items
};

bool equal(const Value& a, const Value& b);
/// Negative, 0 or positive; throws for kinds that have no order.
int compare(const Value& a, const Value& b);

/// As Python's str() and repr() write it. `limit` bytes at most, else LimitError.
Text to_text(const Value& value, std::size_t limit);
Text to_repr(const Value& value, std::size_t limit);

struct JsonStyle {
  int indent = -1;  ///< negative: one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
Text to_json(const Value& value, const JsonStyle& style, std::size_t limit);

}  // namespace quire::jinja
