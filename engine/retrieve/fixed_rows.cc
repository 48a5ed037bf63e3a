#include "engine/retrieve/fixed_rows.h"

#include <algorithm>

namespace quire {

std::int32_t fixed_rows(const PlugOptions& options, std::span<const PlugOption> table,
                        std::string_view name, std::int32_t unit) {
  const auto rows = static_cast<std::int64_t>(options.number(table, name)),
             budget = static_cast<std::int64_t>(options.number(table, "decode_budget"));
  const auto usual = static_cast<std::int64_t>(PlugOptions().number(table, "decode_budget"));
  if (options.given().contains(name) || budget >= usual || rows == 0)
    return static_cast<std::int32_t>(rows);
  return static_cast<std::int32_t>(
      std::max<std::int64_t>(unit, rows * budget / usual / unit * unit));
}

}  // namespace quire
