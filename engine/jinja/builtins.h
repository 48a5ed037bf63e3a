/// The methods and functions a template may use: what transformers offers, less what reaches
/// outside the template.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/jinja/value.h"

namespace quire::jinja {

/// Methods of str, list and dict. The ones that change their object do not exist, as in the
/// sandbox of transformers.
bool has_method(const Value& object, std::string_view name);
Value call_method(Interpreter& run, const Value& object, std::string_view name, Arguments& args);

/// range, namespace, dict, raise_exception, strftime_now, joiner, cycler.
std::vector<std::pair<std::string, Value>> global_functions();

/// Left operand % right operand where the left is a text: %s, %r, %d and %%.
Value format_percent(Interpreter& run, const Text& format, const Value& values);

}  // namespace quire::jinja
