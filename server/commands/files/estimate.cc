#include "server/commands/files/estimate.h"

#include <cctype>
#include <cmath>
#include <cstdio>

namespace quire {
namespace {

struct Density {
  std::string_view ending;
  double text_bytes;  ///< for each byte of the file
};
constexpr Density kDensities[] = {{".pdf", 0.05}, {".docx", 0.6}, {".odt", 0.6},   {".epub", 1.0},
                                  {".html", 0.3}, {".htm", 0.3},  {".xhtml", 0.3}, {".csv", 2.0},
                                  {".mbox", 0.5}, {".eml", 0.5}};
constexpr double kBytesPerToken = 4;

std::string bytes_text(double bytes) {
  const char* units[] = {"bytes", "KB", "MB", "GB", "TB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 4; ++unit) bytes /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit > 0 && bytes < 10 ? "%.1f %s" : "%.0f %s", bytes,
                units[unit]);
  return text;
}

}  // namespace

std::int64_t estimated_tokens(std::string_view name, std::uint64_t bytes) {
  std::string small(name);
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  double density = 1;
  for (const Density& d : kDensities)
    if (small.ends_with(d.ending)) density = d.text_bytes;
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(bytes) * density / kBytesPerToken));
}

std::string grouped(std::int64_t number) {
  std::string out = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(out.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    out.insert(out.begin() + at, ',');
  return out;
}

std::string duration_text(double seconds) {
  const auto count = [](double n, const char* unit) {
    const auto whole = static_cast<std::int64_t>(std::llround(n));
    return std::to_string(whole) + " " + unit + (whole == 1 ? "" : "s");
  };
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return count(seconds, "second");
  return seconds < 5400 ? count(seconds / 60, "minute") : count(seconds / 3600, "hour");
}

std::string to_text(const IngestEstimate& e) {
  std::string out = grouped(e.files) + (e.files == 1 ? " file" : " files") + ", about " +
                    grouped(e.tokens) + " tokens";
  if (e.kv_bytes > 0) out += ", " + bytes_text(static_cast<double>(e.kv_bytes)) + " of KV";
  if (e.seconds > 0) out += ", " + duration_text(e.seconds);
  return out + " (estimated from sizes and the service's last speed)";
}

}  // namespace quire
