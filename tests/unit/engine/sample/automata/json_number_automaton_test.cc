#include "engine/sample/automata/json_number_automaton.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>
#include <string_view>

namespace quire {
namespace {

bool takes(const Automaton& a, std::string_view text) {
  if (a.empty()) return false;
  Automaton::State state = Automaton::kStart;
  for (const char c : text) {
    state = a.next(state, static_cast<unsigned char>(c));
    if (state == Automaton::kNone) return false;
  }
  return a.accepting(state);
}

Automaton made(const JsonNumbers& numbers) {
  AutomatonBudget budget;
  auto automaton = json_number_automaton(numbers, budget);
  EXPECT_TRUE(automaton);
  return automaton ? *automaton : Automaton({});
}

JsonNumbers integers(std::optional<double> min, std::optional<double> max,
                     std::optional<double> multiple_of = {}) {
  JsonNumbers out{.whole = true};
  if (min) out.min = Decimal(*min);
  if (max) out.max = Decimal(*max);
  if (multiple_of) out.multiple_of = Decimal(*multiple_of);
  return out;
}

JsonNumbers numbers(std::optional<double> min, std::optional<double> max,
                    std::optional<double> multiple_of = {}) {
  JsonNumbers out = integers(min, max, multiple_of);
  out.whole = false;
  return out;
}

/// Returns the text of `thousandths`, with this many digits after the point.
std::string spelled(std::int64_t thousandths, int places) {
  std::string digits = std::to_string(std::abs(thousandths));
  if (digits.size() < 4) digits.insert(0, 4 - digits.size(), '0');
  std::string text = digits.substr(0, digits.size() - 3);
  if (places > 0)
    text += "." + digits.substr(digits.size() - 3).substr(0, static_cast<std::size_t>(places));
  return (thousandths < 0 ? "-" : "") + text;
}

TEST(JsonNumberAutomaton, TakesExactlyWhatTheBoundsAndTheDivisorLeave) {
  std::mt19937_64 rng(7);
  const auto below = [&](int n) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(n));
  };
  for (int round = 0; round < 400; ++round) {
    // Bounds and divisors of hundredths, so that texts of thousandths lie between them.
    const bool whole = below(3) == 0;
    const std::int64_t low = (below(4000) - 2000) * (below(2) == 0 ? 10 : 100),
                       high = low + below(3000) * 10;
    const std::int64_t steps[] = {10,   20,   50,   70,   100,   250,   370,   500,
                                  1000, 2500, 3000, 7000, 10000, 20000, 50000, 120000};
    const std::int64_t step = steps[below(16)];
    JsonNumbers n{.whole = whole, .above_min = below(2) == 0, .below_max = below(2) == 0};
    if (below(4) > 0) n.min = Decimal(static_cast<double>(low) / 1000);
    if (below(4) > 0) n.max = Decimal(static_cast<double>(high) / 1000);
    const bool divided = below(2) == 0;
    if (divided) n.multiple_of = Decimal(static_cast<double>(step) / 1000);
    const Automaton automaton = made(n);
    for (int i = 0; i < 400; ++i) {
      const int places = static_cast<int>(below(4));
      static constexpr std::int64_t kUnits[] = {1000, 100, 10, 1};
      std::int64_t value = below(3) == 0   ? low + below(41) - 20
                           : below(2) == 0 ? high + below(41) - 20
                                           : low + below(static_cast<int>(high - low) + 1);
      if (below(2) == 0) value = value / step * step;
      value = value / kUnits[places] * kUnits[places];
      const bool above = !n.min || (n.above_min ? value > low : value >= low);
      const bool under = !n.max || (n.below_max ? value < high : value <= high);
      // Divisors of hundredths have two digits after the point, a third one is not written.
      const bool form = whole ? places == 0 : !divided || places < 3;
      const std::string text = spelled(value, places);
      EXPECT_EQ(takes(automaton, text), above && under && form && (!divided || value % step == 0))
          << text << (whole ? " whole" : "") << (n.min ? " from " + n.min->text() : "")
          << (n.above_min ? " excluded" : "") << (n.max ? " to " + n.max->text() : "")
          << (n.below_max ? " excluded" : "") << (divided ? " by " + n.multiple_of->text() : "");
    }
  }
}

TEST(JsonNumberAutomaton, NumbersAreWrittenInOneForm) {
  const Automaton share = made(numbers(0, 1)), halves = made(numbers({}, {}, 0.5)),
                  even = made(integers({}, {}, 2));
  for (const char* no : {"", "-", "-0", "-0.0", "00", "01", "+1", ".5", "1.", "1e0", "5e-1", "1E0",
                         "0x1", " 1", "1 "}) {
    EXPECT_FALSE(takes(share, no)) << no;
    EXPECT_FALSE(takes(halves, no)) << no;
    EXPECT_FALSE(takes(even, no)) << no;
  }
  for (const char* yes : {"0", "0.0", "2", "-0.5", "-1.50", "100"})
    EXPECT_TRUE(takes(halves, yes)) << yes;
  for (const char* no : {"0.1", "0.55", "1e3", "0.500"}) EXPECT_FALSE(takes(halves, no)) << no;
  for (const char* yes : {"0", "-2", "10", "123456789012345678"})
    EXPECT_TRUE(takes(even, yes)) << yes;
  for (const char* no : {"1", "2.0", "123456789012345679", "1234567890123456780", "1e2"})
    EXPECT_FALSE(takes(even, no)) << no;
}

TEST(JsonNumberAutomaton, TheCloserOfTwoBoundsCounts) {
  for (const bool swapped : {false, true}) {
    JsonNumbers n;
    for (const int i : swapped ? std::array{1, 0} : std::array{0, 1}) {
      n.from(Decimal(i == 0 ? 2.5 : 2.0), i == 1);
      n.to(Decimal(4.0), i == 1);
    }
    const Automaton automaton = made(n);
    for (const char* yes : {"2.5", "3.999"}) EXPECT_TRUE(takes(automaton, yes)) << yes;
    for (const char* no : {"2.4", "4"}) EXPECT_FALSE(takes(automaton, no)) << no;
  }
}

TEST(JsonNumberAutomaton, BoundsMayHaveManyDigits) {
  const double safe = 9007199254740991;  // of JavaScript
  const Automaton script = made(integers(-safe, safe));
  for (const char* yes : {"9007199254740991", "-9007199254740991", "0", "-1"})
    EXPECT_TRUE(takes(script, yes)) << yes;
  for (const char* no : {"9007199254740992", "-9007199254740992", "10000000000000000"})
    EXPECT_FALSE(takes(script, no)) << no;
  const Automaton far = made(integers(-1e300, 1e300));
  EXPECT_TRUE(takes(far, "999999999999999999"));
  EXPECT_FALSE(takes(far, "1000000000000000000")) << "integers have 18 digits";
  const Automaton wide = made(numbers(-1.7976931348623157e308, 1.7976931348623157e308));
  EXPECT_TRUE(takes(wide, "-999999999999999.999999"));
  const Automaton large = made(numbers(0, 1e14));
  EXPECT_TRUE(takes(large, "99999999999999"));
  EXPECT_FALSE(takes(large, "0.5")) << "a double could not tell it from its neighbours at 1e14";
  const Automaton small = made(numbers(1e-9, 1e-7));
  for (const char* yes : {"0.000000001", "0.0000001", "0.0000000123"})
    EXPECT_TRUE(takes(small, yes)) << yes;
  for (const char* no : {"0", "0.0000000009", "0.00000010001", "1"})
    EXPECT_FALSE(takes(small, no)) << no;
  EXPECT_TRUE(made(integers(1e18, {})).empty());
  EXPECT_TRUE(made(numbers(1e300, {})).empty());
  EXPECT_TRUE(made(numbers(0.30000000000000004, 0.30000000000000004)).empty());
}

TEST(JsonNumberAutomaton, ADoubleFindsEachNumberOnItsSideOfTheBounds) {
  std::mt19937_64 rng(3);
  for (const double bound :
       {1.0, 0.3, 0.1, 7.25, 1e-8, 123456.789, 99999999.5, 0.30000000000000004}) {
    JsonNumbers below = numbers({}, bound), above = numbers(bound, {});
    below.below_max = above.above_min = true;
    for (const auto& [n, low] : {std::pair(below, false), std::pair(above, true)}) {
      const Automaton automaton = made(n);
      // Follows the digits of the bound, and leaves them at random for 9 or 0.
      for (int i = 0; i < 300; ++i) {
        const std::string digits = Decimal(bound).text() + (low ? "" : ".");
        std::string text;
        Automaton::State state = Automaton::kStart;
        std::size_t at_digit = 0;
        while (text.size() < 40) {
          if (automaton.accepting(state) && rng() % 12 == 0) break;
          char c = at_digit < digits.size() && rng() % 15 != 0 ? digits[at_digit] : low ? '0' : '9';
          auto next = automaton.next(state, static_cast<unsigned char>(c));
          if (next == Automaton::kNone) {
            const auto edges = automaton.edges(state);
            if (edges.empty()) break;
            const auto& edge = edges[rng() % edges.size()];
            c = static_cast<char>(edge.first);
            next = edge.to;
          }
          text += c;
          state = next;
          ++at_digit;
        }
        if (!automaton.accepting(state)) continue;
        const double read = std::strtod(text.c_str(), nullptr);
        EXPECT_TRUE(low ? read > bound : read < bound) << text << " and " << bound;
      }
    }
  }
}

TEST(JsonNumberAutomaton, DivisorsOfManyDigitsNeedCloseBounds) {
  AutomatonBudget budget;
  EXPECT_FALSE(json_number_automaton(integers({}, {}, 999983), budget));
  AutomatonBudget other;
  EXPECT_FALSE(json_number_automaton(numbers({}, {}, 0.1234567890123), other));
  const Automaton few = made(integers(0, 20000, 9973));
  for (const char* yes : {"0", "9973", "19946"}) EXPECT_TRUE(takes(few, yes)) << yes;
  EXPECT_FALSE(takes(few, "9974"));
  const Automaton round = made(integers({}, {}, 250000000));
  EXPECT_TRUE(takes(round, "-1250000000"));
  for (const char* no : {"125000000", "100000000", "2500000000000000001"})
    EXPECT_FALSE(takes(round, no)) << no;
  const Automaton huge = made(integers({}, {}, 1e300));
  EXPECT_TRUE(takes(huge, "0"));
  EXPECT_FALSE(takes(huge, "100000000000000000"));
  for (const std::optional<double> most : {std::optional<double>(), std::optional(1.0)}) {
    const Automaton tiny = made(numbers(0, most, 1e-20));
    EXPECT_TRUE(takes(tiny, "0.12345678901234"));
    EXPECT_FALSE(takes(tiny, "0.123456789012345"));
  }
}

}  // namespace
}  // namespace quire
