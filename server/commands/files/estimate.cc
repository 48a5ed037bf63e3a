#include "server/commands/files/estimate.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>

namespace quire {
namespace {

struct Density {
  std::string_view ending;
  double text_bytes;  ///< for each byte of the file
};
constexpr Density kDensities[] = {{".pdf", 0.05}, {".docx", 0.6}, {".xlsx", 2.0},  {".pptx", 0.05},
                                  {".odt", 0.6},  {".ods", 2.0},  {".odp", 0.05},  {".epub", 1.0},
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

std::string ending_of(std::string_view name) {
  const auto dot = name.rfind('.');
  std::string out(dot == std::string_view::npos ? std::string_view() : name.substr(dot));
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool density_varies(std::string_view name) {
  return std::ranges::find(kDensities, ending_of(name), &Density::ending) != std::end(kDensities);
}

void TextDensities::add(std::string_view name, std::uint64_t file_bytes, std::uint64_t text_bytes) {
  Sum& sum = sums_[ending_of(name)];
  sum.file_bytes += static_cast<double>(file_bytes);
  sum.text_bytes += static_cast<double>(text_bytes);
}

std::int64_t TextDensities::tokens(std::string_view name, std::uint64_t file_bytes) const {
  const std::string ending = ending_of(name);
  double density = 1;
  if (const auto* d = std::ranges::find(kDensities, ending, &Density::ending);
      d != std::end(kDensities))
    density = d->text_bytes;
  if (const auto sum = sums_.find(ending); sum != sums_.end() && sum->second.file_bytes > 0)
    density = sum->second.text_bytes / sum->second.file_bytes;
  return static_cast<std::int64_t>(
      std::ceil(static_cast<double>(file_bytes) * density / kBytesPerToken));
}

std::string grouped(std::int64_t number) {
  std::string out = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(out.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    out.insert(out.begin() + at, ',');
  return out;
}

std::string counted(std::int64_t number, const std::string& unit) {
  return grouped(number) + " " + unit + (number == 1 ? "" : "s");
}

std::string duration_text(double seconds) {
  const auto count = [](double n, const char* unit) { return counted(std::llround(n), unit); };
  if (seconds < 1) return "less than a second";
  if (seconds < 90) return count(seconds, "second");
  return seconds < 5400 ? count(seconds / 60, "minute") : count(seconds / 3600, "hour");
}

std::string to_text(const IngestEstimate& e) {
  std::string out = counted(e.files, "file") + ", about " + counted(e.tokens, "token");
  if (e.kv_bytes > 0) out += ", " + bytes_text(static_cast<double>(e.kv_bytes)) + " of KV";
  if (e.seconds > 0) out += ", " + duration_text(e.seconds);
  out += e.read > 0 ? " (estimated from " + counted(e.read, "file") + " read, sizes"
                    : " (estimated from sizes";
  return out + " and the service's last speed)";
}

}  // namespace quire
