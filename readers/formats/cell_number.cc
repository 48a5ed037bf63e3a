#include "readers/formats/cell_number.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>

namespace quire {
namespace {

/// What a format code asks for.
struct Wanted {
  bool date = false, time = false, seconds = false, elapsed = false, percent = false;
};

Wanted read_format(std::string_view code) {
  Wanted out;
  code = code.substr(0, code.find(';'));  // of positive numbers
  bool months = false;
  for (std::size_t i = 0; i < code.size(); ++i) {
    const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(code[i])));
    if (c == '"' || c == '[') {  // a text; a colour, a currency, or hours that go on beyond 24
      const auto end = std::min(code.find(c == '"' ? '"' : ']', i + 1), code.size());
      const std::string_view inner = code.substr(i + 1, end - i - 1);
      if (c == '[' && !inner.empty() && inner.find_first_not_of("hHmMsS") == inner.npos)
        out.elapsed = out.time = true;
      i = end;
    } else if (c == '\\' || c == '_' || c == '*') {
      ++i;  // what follows stands for itself
    } else if (c == 'y' || c == 'd') {
      out.date = true;
    } else if (c == 'm') {
      months = true;
    } else if (c == 'h' || c == 's') {
      out.time = true;
      out.seconds = out.seconds || c == 's';
    } else if (c == '%') {
      out.percent = true;
    }
  }
  if (months && !out.time) out.date = true;  // else they are minutes
  return out;
}

template <class... Values>
std::string formatted(const char* format, Values... values) {
  std::array<char, 64> text{};
  const int n = std::snprintf(text.data(), text.size(), format, values...);
  return {text.data(), static_cast<std::size_t>(std::clamp(n, 0, 63))};
}

std::string plain(double value, int digits) {
  if (std::abs(value) < 1e15 && value == std::floor(value)) return formatted("%.0f", value);
  return formatted("%.*g", digits, value);
}

std::string shown_time(std::int64_t seconds, bool with_seconds) {
  const auto hours = static_cast<long long>(seconds / 3600),
             minutes = static_cast<long long>(seconds / 60 % 60),
             rest = static_cast<long long>(seconds % 60);
  return with_seconds && rest != 0 ? formatted("%02lld:%02lld:%02lld", hours, minutes, rest)
                                   : formatted("%02lld:%02lld", hours, minutes);
}

}  // namespace

std::string_view built_in_format(int id) {
  if (id == 9 || id == 10) return "0.00%";
  if (id == 22) return "m/d/yy h:mm";
  if ((id >= 14 && id <= 17) || (id >= 27 && id <= 31) || id == 36 || (id >= 50 && id <= 54) ||
      id == 57 || id == 58)
    return "yyyy-mm-dd";
  if ((id >= 18 && id <= 21) || (id >= 32 && id <= 35) || id == 45 || id == 47 || id == 55 ||
      id == 56)
    return "h:mm:ss";
  return id == 46 ? "[h]:mm:ss" : "";
}

std::string shown_number(double value, std::string_view format, bool since_1904) {
  constexpr double kAfterTheYear9999 = 2'958'466;
  constexpr int kAllDigits = 15, kSureDigits = 12;
  if (!std::isfinite(value)) return {};
  const Wanted wanted = read_format(format);
  if (wanted.percent) return plain(value * 100, kSureDigits) + "%";
  if ((!wanted.date && !wanted.time) || value < 0 || value >= kAfterTheYear9999)
    return plain(value, kAllDigits);
  constexpr std::int64_t kDay = 86'400;
  const std::int64_t seconds = std::llround(value * static_cast<double>(kDay));
  if (!wanted.date)
    return shown_time(wanted.elapsed ? seconds : seconds % kDay, wanted.seconds || wanted.elapsed);
  // The workbooks' calendar has a 29 February 1900, which is day 60.
  const std::int64_t day = seconds / kDay, leap = day < 60 ? 1 : 0;
  using std::chrono::days;
  using std::chrono::year_month_day;
  constexpr std::chrono::sys_days k1899 = std::chrono::year{1899} / 12 / 30,
                                  k1904 = std::chrono::year{1904} / 1 / 1;
  const year_month_day date(since_1904 ? k1904 + days(day) : k1899 + days(day + leap));
  const std::string text = formatted("%04d-%02u-%02u", static_cast<int>(date.year()),
                                     static_cast<unsigned>(date.month()),
                                     static_cast<unsigned>(date.day()));
  return wanted.time ? text + " " + shown_time(seconds % kDay, wanted.seconds) : text;
}

}  // namespace quire
