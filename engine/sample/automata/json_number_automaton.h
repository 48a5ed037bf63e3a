/// This file builds the automata of JSON numbers with bounds or a divisor. Internal to sample/.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/sample/automata/automaton.h"
#include "engine/sample/automata/decimal.h"

namespace quire {

/// Which numbers a schema allows.
struct JsonNumbers {
  bool whole = false;  ///< integers, without a point
  std::optional<Decimal> min, max;
  bool above_min = false, below_max = false;  ///< the bound itself is excluded
  std::optional<Decimal> multiple_of;         ///< above zero

  /// Adds a bound from below or above; the closer one of several counts.
  void from(const Decimal& bound, bool excluded);
  void to(const Decimal& bound, bool excluded);
};

/// Digits of an integer at most.
inline constexpr std::int32_t kMostIntegerDigits = 18;
/// Digits of a number before and after the point at most: as many as a double always keeps, so that
/// its reader finds it on the same side of a bound.
inline constexpr std::int32_t kMostNumberDigits = 15;

/// Returns the numbers without exponent, and without a sign before zero. Those that are not whole
/// have up to six digits more after the point than the bounds have, or as many as the divisor has
/// (two at least); the bounds' digits before the point and these are kMostNumberDigits together at
/// most. Divisors divide decimal numbers exactly. Returns nothing if there are too many states, or
/// the budget is spent.
std::optional<Automaton> json_number_automaton(const JsonNumbers& numbers, AutomatonBudget& budget);

}  // namespace quire
