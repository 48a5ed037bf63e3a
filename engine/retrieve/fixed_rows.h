/// fixed_rows() computes how many first and last tokens a retriever always attends to.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/plug/plug_options.h"

namespace quire {

/// Returns the tokens of option `name` (decode_sink, decode_window); `table` must have it and
/// decode_budget. A given value is used as it is. Below the default budget the default shrinks in
/// proportion to the budget, to whole units, at least one unless the default is 0; so the same
/// share of every budget is left to choose.
std::int32_t fixed_rows(const PlugOptions& options, std::span<const PlugOption> table,
                        std::string_view name, std::int32_t unit);

}  // namespace quire
