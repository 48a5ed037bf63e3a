/// FixedRows says how many first or last tokens a retriever always attends to.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/plug/option_table.h"

namespace quire {

/// A number of tokens that keeps in mind whether the request gave it.
struct FixedRows {
  std::int32_t rows = 0;
  bool given = false;

  constexpr FixedRows() = default;
  constexpr FixedRows(std::int32_t usual) : rows(usual) {}
  constexpr operator std::int32_t() const { return rows; }

  /// Returns the tokens under this budget. A given value is used as it is. Below the usual budget
  /// the default shrinks in proportion, to whole units, at least one unless the default is 0; so
  /// the same share of every budget is left to choose.
  std::int32_t under(std::int64_t budget, std::int64_t usual_budget, std::int32_t unit) const {
    if (given || budget >= usual_budget || rows == 0) return rows;
    return static_cast<std::int32_t>(
        std::max<std::int64_t>(unit, rows * budget / usual_budget / unit * unit));
  }
};

/// Describes an option that holds such a number.
template <class Options>
OptionField<Options> fixed_rows_option(std::string_view name, FixedRows Options::*member,
                                       OptionRange range, std::string_view summary) {
  return {PlugOption{name, {}, {}, range.least, range.most, /*whole=*/true, summary},
          [member](Options& options, std::string_view value) {
            double x = 0;
            QUIRE_CHECK(parse_number(value, x), "an option's value was not checked");
            (options.*member).rows = static_cast<std::int32_t>(x);
            (options.*member).given = true;
          },
          [member](const Options& options) { return number_text((options.*member).rows); }};
}

}  // namespace quire
