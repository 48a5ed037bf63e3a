/// How many first and last tokens a retriever always attends to.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/plug/plug_options.h"

namespace quire {

/// Tokens of option `name` (decode_sink, decode_window), which `table` has beside decode_budget: as
/// given; else the default, which below the default budget shrinks in proportion to the budget, to
/// whole units, one at least where the default is not 0. So the same share of every budget is left
/// to choose.
std::int32_t fixed_rows(const PlugOptions& options, std::span<const PlugOption> table,
                        std::string_view name, std::int32_t unit);

}  // namespace quire
