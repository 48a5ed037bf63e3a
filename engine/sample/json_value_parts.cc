#include "engine/sample/json_value_parts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/sample/regex_grammar.h"

namespace quire {
namespace {

using Part = Grammar::Part;

constexpr std::int64_t kLargest = 999'999'999'999'999'999;  // 18 digits
// With 9 digits before the point and 6 after it, a double still distinguishes the bounds.
constexpr std::int32_t kFractionDigits = 6;

class Numbers {
 public:
  explicit Numbers(GrammarBuilder& builder) : b_(builder) {}

  /// Builds the integers from `low` to `high`, 0 <= low <= high, as JSON writes them.
  Part whole(std::int64_t low, std::int64_t high) {
    std::vector<Part> parts;
    std::int64_t first = 0, last = 9;  // of the numbers with this many digits
    while (first <= high) {
      const std::int64_t from = std::max(low, first), to = std::min(high, last);
      if (from <= to) parts.push_back(same_length(std::to_string(from), std::to_string(to)));
      first = last + 1;
      last = last > kLargest / 10 ? kLargest : last * 10 + 9;
      if (first > kLargest) break;
    }
    return b_.choice(std::move(parts));
  }

  /// Builds the numbers from `low` to `high`, 0 <= low <= high; flags say which bounds are
  /// excluded.
  std::optional<Part> decimal(std::int64_t low, bool above_low, std::int64_t high,
                              bool below_high) {
    std::vector<Part> parts;
    const Part some = b_.sequence({b_.literal("."), b_.repeat(digit(), 1, kFractionDigits)});
    const std::int64_t inner = low + (above_low ? 1 : 0);
    if (low < high && above_low) parts.push_back(b_.sequence({whole(low, low), not_zero()}));
    if (inner <= high - 1)
      parts.push_back(b_.sequence({whole(inner, high - 1), b_.optional(some)}));
    if (!below_high && (low < high || !above_low)) {
      const Part zeros = b_.sequence(
          {b_.literal("."), b_.repeat(b_.literal("0"), 1, kFractionDigits)});
      parts.push_back(b_.sequence({whole(high, high), b_.optional(zeros)}));
    }
    if (parts.empty()) return std::nullopt;
    return b_.choice(std::move(parts));
  }

  Part negative(Part part) { return b_.sequence({b_.literal("-"), part}); }

 private:
  Part digit() { return b_.range('0', '9'); }

  /// Builds a fraction greater than zero.
  Part not_zero() {
    return b_.sequence({b_.literal("."), b_.repeat(b_.literal("0"), 0, kFractionDigits / 2),
                        b_.range('1', '9'), b_.repeat(digit(), 0, kFractionDigits / 2 - 1)});
  }

  /// Builds the digit texts between two texts of the same length.
  Part same_length(const std::string& low, const std::string& high) {
    if (low.empty()) return b_.sequence({});
    const auto rest = static_cast<std::int32_t>(low.size()) - 1;
    const std::string low_rest = low.substr(1), high_rest = high.substr(1);
    if (low[0] == high[0])
      return b_.sequence({b_.literal(low.substr(0, 1)), same_length(low_rest, high_rest)});
    const std::string zeros(low_rest.size(), '0'), nines(low_rest.size(), '9');
    std::vector<Part> parts;
    char from = low[0], to = high[0];
    if (low_rest != zeros)
      parts.push_back(
          b_.sequence({b_.literal(std::string(1, from++)), same_length(low_rest, nines)}));
    if (high_rest != nines)
      parts.push_back(
          b_.sequence({b_.literal(std::string(1, to--)), same_length(zeros, high_rest)}));
    if (from <= to)
      parts.push_back(
          b_.sequence({b_.range(static_cast<unsigned char>(from), static_cast<unsigned char>(to)),
                       b_.repeat(digit(), rest, rest)}));
    return b_.choice(std::move(parts));
  }

  GrammarBuilder& b_;
};

/// Builds parts of dates and times.
class Formats {
 public:
  explicit Formats(GrammarBuilder& builder) : b_(builder) {}

  Part date() {
    const Part day28 = either(
        {pair('0', '0', '1', '9'), pair('1', '1', '0', '9'), pair('2', '2', '0', '8')});
    const Part day30 = either({day28, b_.literal("29"), b_.literal("30")});
    const Part day31 = either({day30, b_.literal("31")});
    const auto months = [&](std::vector<std::string> names, Part days) {
      std::vector<Part> parts;
      for (auto& name : names) parts.push_back(b_.literal(std::move(name)));
      return b_.sequence({b_.choice(std::move(parts)), b_.literal("-"), days});
    };
    // Python and other languages have no year 0.
    const Part year = b_.sequence({b_.range('1', '9'), digits(3)});
    return b_.sequence({year, b_.literal("-"),
                        either({months({"01", "03", "05", "07", "08", "10", "12"}, day31),
                                months({"04", "06", "09", "11"}, day30), months({"02"}, day28)})});
  }

  Part time() {
    const Part colon = b_.literal(":"), sixty = pair('0', '5', '0', '9');
    const Part hours = either({pair('0', '1', '0', '9'), pair('2', '2', '0', '3')});
    ByteSet sign;
    sign.set('+').set('-');
    const Part fraction = b_.optional(
        b_.sequence({b_.literal("."), b_.repeat(b_.range('0', '9'), 1, 6)}));
    const Part zone = either({b_.literal("Z"), b_.sequence({b_.bytes(sign), hours, colon, sixty})});
    return b_.sequence({hours, colon, sixty, colon, sixty, fraction, zone});
  }

  Part uuid() {
    const Part dash = b_.literal("-");
    return b_.sequence({hex(8), dash, hex(4), dash, hex(4), dash, hex(4), dash, hex(12)});
  }

 private:
  Part either(std::vector<Part> parts) { return b_.choice(std::move(parts)); }
  Part digits(std::int32_t count) { return b_.repeat(b_.range('0', '9'), count, count); }
  Part hex(std::int32_t count) {
    return b_.repeat(b_.choice({b_.range('0', '9'), b_.range('a', 'f')}), count, count);
  }
  Part pair(char first_low, char first_high, char low, char high) {
    return b_.sequence(
        {b_.range(static_cast<unsigned char>(first_low), static_cast<unsigned char>(first_high)),
         b_.range(static_cast<unsigned char>(low), static_cast<unsigned char>(high))});
  }

  GrammarBuilder& b_;
};

/// The formats that an expression describes; empty: another one.
std::string expression_of(std::string_view format) {
  const std::string label = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?";
  const std::string host = label + "(?:\\." + label + "){0,3}";
  const std::string domain = "(?:" + label + "\\.){1,3}[a-z]{2,10}";
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  if (format == "hostname") return host;
  if (format == "email") return "[A-Za-z0-9_+-]{1,24}(?:\\.[A-Za-z0-9_+-]{1,24}){0,3}@" + domain;
  if (format == "ipv4") return octet + "(?:\\." + octet + "){3}";
  if (format == "ipv6") return "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}";
  if (format == "uri")
    return "https?://" + domain + "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]{0,40}){0,6}";
  if (format == "duration")
    return "P(?:[0-9]{1,3}W|[0-9]{1,4}D(?:T[0-9]{1,2}H)?|T(?:[0-9]{1,2}H)?[0-9]{1,2}M|"
           "T[0-9]{1,5}S)";
  return {};
}

}  // namespace

std::optional<Part> json_integer_between(GrammarBuilder& builder, const JsonRange& range) {
  const std::int64_t low = range.min ? *range.min + (range.above_min ? 1 : 0) : -kLargest;
  const std::int64_t high = range.max ? *range.max - (range.below_max ? 1 : 0) : kLargest;
  if (low > high) return std::nullopt;
  Numbers numbers(builder);
  std::vector<Part> parts;
  if (high >= 0) parts.push_back(numbers.whole(std::max<std::int64_t>(low, 0), high));
  if (low < 0)
    parts.push_back(numbers.negative(numbers.whole(std::max<std::int64_t>(-high, 1), -low)));
  return builder.choice(std::move(parts));
}

std::optional<Part> json_number_between(GrammarBuilder& builder, const JsonRange& range) {
  const std::int64_t low = range.min.value_or(-kLargest), high = range.max.value_or(kLargest);
  if (low > high) return std::nullopt;
  Numbers numbers(builder);
  std::vector<Part> parts;
  const auto add = [&](std::optional<Part> part) {
    if (part) parts.push_back(*part);
  };
  if (high >= 0)
    add(low >= 0 ? numbers.decimal(low, range.above_min, high, range.below_max)
                 : numbers.decimal(0, false, high, range.below_max));
  if (low < 0) {
    // Negative ranges are mirrored; 0 is written without a sign.
    const auto mirrored = high < 0 ? numbers.decimal(-high, range.below_max, -low, range.above_min)
                                   : numbers.decimal(0, true, -low, range.above_min);
    if (mirrored) add(numbers.negative(*mirrored));
  }
  if (parts.empty()) return std::nullopt;
  return builder.choice(std::move(parts));
}

std::optional<Part> json_format(GrammarBuilder& builder, std::string_view name) {
  Formats formats(builder);
  if (name == "date") return formats.date();
  if (name == "time") return formats.time();
  if (name == "date-time")
    return builder.sequence({formats.date(), builder.literal("T"), formats.time()});
  if (name == "uuid") return formats.uuid();
  const std::string expression = expression_of(name);
  if (expression.empty()) return std::nullopt;
  auto part = regex_part(builder, expression, {.json_string = true});
  QUIRE_CHECK(part.ok(), part.status().to_string());
  return *part;
}

}  // namespace quire
