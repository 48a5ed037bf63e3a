#include "engine/sample/json_value_parts.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/sample/regex_grammar.h"

namespace quire {
namespace {

using Part = Grammar::Part;

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
