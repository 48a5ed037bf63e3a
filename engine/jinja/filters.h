/// The filters a template may use: what transformers offers.
#pragma once

#include <string_view>

#include "engine/jinja/value.h"

namespace quire::jinja {

bool is_filter(std::string_view name);
/// Throws Error where there is no such filter, or where its arguments do not fit.
Value apply_filter(Interpreter& run, std::string_view name, const Value& subject, Arguments& args);

}  // namespace quire::jinja
