/// Renders one parsed template once, within bounds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/jinja/ast.h"
#include "engine/jinja/value.h"

namespace quire::jinja {

struct Bounds {
  std::uint64_t steps;       ///< statements and expressions evaluated, and work on large values
  std::uint64_t text_bytes;  ///< of all texts made on the way, also those thrown away
  std::uint64_t output_bytes;
  int depth;  ///< of statements, expressions and macros within each other
};

/// One render, one thread. Values that came from it must not outlive it.
class Interpreter {
 public:
  explicit Interpreter(const Bounds& bounds);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  /// Throws Error; LimitError where a bound is met. `inputs` are the names the template sees.
  Text render(const Template& source, std::vector<std::pair<std::string, Value>> inputs);

  /// The line of the statement that ran last.
  int line() const { return line_; }

  // For builtins.

  void step(std::uint64_t count = 1);
  /// Counts `size` bytes of text that are about to be made.
  void charge(std::uint64_t size);
  /// How long a text may still be.
  std::size_t room() const;
  Value text(Text text);  ///< counted
  Value text(std::string_view text) { return this->text(Text(std::string(text))); }
  Text str(const Value& value);  ///< as Python's str(), counted
  Value call(const Value& function, Arguments& args);
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  /// What a for loop would go over; throws for values that cannot be gone over.
  std::vector<Value> items(const Value& value);
  bool contains(const Value& container, const Value& value);
  bool same(const Value& a, const Value& b);
  std::shared_ptr<Dict> new_namespace();

 private:
  struct Scope;
  enum class Flow : unsigned char { kNext, kBreak, kContinue };
  class Deeper;

  Flow execute(const Block& block, Scope& scope, Text& out);
  Flow execute(const Statement& s, Scope& scope, Text& out);
  Flow run_for(const Statement& s, Scope& scope, Text& out);
  void run_set(const Statement& s, Scope& scope);
  void run_filtered(const Statement& s, Scope& scope, Text& out);
  Flow run_scope(const Statement& s, Scope& scope, Text& out);
  void run_call_block(const Statement& s, Scope& scope, Text& out);
  void emit(const Value& value, Text& out);
  Text collect(const Block& block, Scope& scope);
  void bind(const std::vector<std::string>& names, const Value& value, Scope& scope);
  Value macro(const Statement& s, std::string name, Scope& scope);
  Value call_macro(const Statement& s, const std::string& name, Scope& scope, Arguments& args);
  std::unique_ptr<Scope> new_scope(Scope& parent);
  void leave(std::unique_ptr<Scope> scope);

  Value evaluate(const Expression& e, Scope& scope);
  Value evaluate_list(const Expression& e, Scope& scope);
  Value evaluate_dict(const Expression& e, Scope& scope);
  Value evaluate_call(const Expression& e, Scope& scope);
  Value evaluate_filter(const Expression& e, Scope& scope);
  Value evaluate_test(const Expression& e, Scope& scope);
  Value evaluate_binary(const Expression& e, Scope& scope);
  Value evaluate_compare(const Expression& e, Scope& scope);
  Value evaluate_concat(const Expression& e, Scope& scope);
  Value evaluate_slice(const Expression& e, Scope& scope);
  Value evaluate_negate(const Expression& e, Scope& scope);
  Value lookup(const std::string& name, const Scope& scope) const;
  Arguments arguments(const Expression& e, std::size_t first, Scope& scope);
  Value add(const Value& a, const Value& b);
  Value repeat(const Value& sequence, std::int64_t count);

  Bounds left_;
  const Bounds bounds_;
  int depth_ = 0, line_ = 0;
  std::vector<std::unique_ptr<Scope>> kept_;       ///< scopes a macro may still look into
  std::vector<std::shared_ptr<Dict>> namespaces_;  ///< emptied at the end: they may hold each other
};

}  // namespace quire::jinja
