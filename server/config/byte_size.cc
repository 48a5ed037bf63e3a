#include "server/config/byte_size.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string>

#include "base/index.h"

namespace quire {
namespace {

/// Returns the number of bytes of a unit; 0: the unit is unknown.
double unit_bytes(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (unit == "b") return 1;
  constexpr std::string_view kPrefixes = "kmgt";
  const std::size_t power = unit.empty() ? std::string_view::npos : kPrefixes.find(unit[0]);
  if (power == std::string_view::npos) return 0;
  const std::string rest = unit.substr(1);
  if (rest != "" && rest != "b" && rest != "ib") return 0;
  return std::pow(rest == "b" ? 1000.0 : 1024.0, static_cast<double>(power) + 1);
}

}  // namespace

std::optional<std::int64_t> parse_byte_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  std::int64_t whole = 0;
  const auto [after_whole, whole_error] = std::from_chars(text.data(), end, whole);
  if (whole_error == std::errc() && after_whole == end) return whole;
  double number = 0;
  const auto [after, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || after == end || !(number >= 0)) return std::nullopt;
  std::string_view unit = text.substr(to_size(after - text.data()));
  if (unit.front() == ' ') unit.remove_prefix(1);
  const double bytes = number * unit_bytes(std::string(unit));
  if (unit_bytes(std::string(unit)) == 0 || bytes >= 9.2e18) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(bytes));
}

}  // namespace quire
