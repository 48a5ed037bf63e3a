/// The tests that a template may put after "is": what transformers offers.
#pragma once

#include <string_view>

#include "engine/jinja/value.h"

namespace quire::jinja {

bool is_test(std::string_view name);
/// Throws Error where there is no such test, or where its arguments do not fit.
bool apply_test(Interpreter& run, std::string_view name, const Value& subject, Arguments& args);

}  // namespace quire::jinja
