#include <cstdio>

#include "bench/gpu/measure.h"

namespace quire::cuda::bench {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

std::string number(double x) {
  char out[32];
  std::snprintf(out, sizeof out, "%.4g", x);
  return out;
}

/// Returns the members of a row, without braces.
std::string row_members(const Row& row, const Least& least) {
  std::string out = "\"name\": " + quoted(row.name) + ", \"shape\": " + quoted(row.shape) +
                    ", \"median_us\": " + number(row.median_us) +
                    ", \"fastest_us\": " + number(row.fastest_us) +
                    ", \"p90_us\": " + number(row.p90_us);
  if (row.bytes > 0) out += ", \"gb_per_s\": " + number(row.gb_per_s());
  if (row.flops > 0) out += ", \"tflop_per_s\": " + number(row.tflop_per_s());
  for (const auto& [name, value] : row.more) out += ", " + quoted(name) + ": " + number(value);
  if (row.host_bytes > 0) out += ", \"host_bytes\": " + number(row.host_bytes);
  if (least.ceiling != nullptr) {
    out += ", \"ceiling\": " + quoted(least.ceiling->name) + ", \"least_us\": " + number(least.us) +
           ", \"share_of_ceiling\": " + number(least.us / row.median_us);
  }
  return out;
}
std::string row_json(const Row& row, const Least& least) {
  return "    {" + row_members(row, least) + "}";
}

}  // namespace

std::string row_line(const std::string& section, const Row& row, const Ceilings& ceilings) {
  return "{\"section\": " + quoted(section) + ", " + row_members(row, least_time(row, ceilings)) +
         "}";
}

std::string section_line(const SectionResult& section) {
  std::string out = "{\"section\": " + quoted(section.name) +
                    ", \"seconds\": " + number(section.seconds) +
                    ", \"error\": " + quoted(section.error);
  for (const auto& [name, value] : section.texts) out += ", " + quoted(name) + ": " + quoted(value);
  return out + "}";
}

Least least_time(const Row& row, const Ceilings& c) {
  Least least;
  const auto take = [&](double us, const Row& ceiling) {
    if (ceiling.median_us > 0 && us > least.us) least = {us, &ceiling};
  };
  if (row.bytes > 0) take(row.bytes / c.copy.gb_per_s() / 1e3, c.copy);
  if (row.flops > 0) take(row.flops / c.matmul.tflop_per_s() / 1e6, c.matmul);
  if (row.host_bytes > 0)
    take(row.host_bytes / c.host_to_device.gb_per_s() / 1e3, c.host_to_device);
  return least;
}

void print_shares(const std::vector<Row>& rows, const Ceilings& ceilings) {
  std::fprintf(stderr, "%-24s %-44s %13s %13s %6s  %s\n", "", "", "median us", "least us", "share",
               "bound by");
  for (const Row& row : rows) {
    const Least least = least_time(row, ceilings);
    std::fprintf(stderr, "%-24s %-44s %13.1f ", row.name.c_str(), row.shape.c_str(), row.median_us);
    if (least.ceiling == nullptr)
      std::fprintf(stderr, "%13s\n", "-");
    else
      std::fprintf(stderr, "%13.1f %5.0f%%  %s\n", least.us, 100 * least.us / row.median_us,
                   least.ceiling->name.c_str());
  }
}

std::string result_json(const std::vector<SectionResult>& sections, const std::string& commit,
                        const std::string& date, const Ceilings& ceilings,
                        const std::vector<Row>& rows) {
  std::string out = "{\n  \"name\": \"gpu\", \"commit\": " + quoted(commit) +
                    ", \"date\": " + quoted(date) + ",\n  \"machine\": {";
  std::string between;
  for (const SectionResult& section : sections) {
    for (const auto& [name, value] : section.texts) {
      out += between + quoted(name) + ": " + quoted(value);
      between = ", ";
    }
  }
  out += "},\n  \"sections\": [\n";
  for (std::size_t i = 0; i < sections.size(); ++i) {
    const SectionResult& section = sections[i];
    out += "    {\"name\": " + quoted(section.name) + ", \"seconds\": " + number(section.seconds) +
           (section.error.empty() ? "" : ", \"error\": " + quoted(section.error)) +
           (i + 1 < sections.size() ? "},\n" : "}\n");
  }
  out += "  ],\n  \"rows\": [\n";
  std::vector<std::string> lines;
  for (const Row* ceiling :
       {&ceilings.copy, &ceilings.read, &ceilings.host_to_device, &ceilings.matmul}) {
    if (ceiling->median_us > 0) lines.push_back(row_json(*ceiling, {}));
  }
  for (const Row& row : rows) lines.push_back(row_json(row, least_time(row, ceilings)));
  for (std::size_t i = 0; i < lines.size(); ++i)
    out += lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
  return out + "  ]\n}\n";
}

}  // namespace quire::cuda::bench
