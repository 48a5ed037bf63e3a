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

std::string row_json(const Row& row, const Row* ceiling) {
  std::string out = "    {\"name\": " + quoted(row.name) + ", \"shape\": " + quoted(row.shape) + ", \"median_us\": " + number(row.median_us) + ", \"fastest_us\": " + number(row.fastest_us) +
                    ", \"p90_us\": " + number(row.p90_us);
  if (row.bytes > 0) out += ", \"gb_per_s\": " + number(row.gb_per_s());
  if (row.flops > 0) out += ", \"tflop_per_s\": " + number(row.tflop_per_s());
  for (const auto& [name, value] : row.more) out += ", " + quoted(name) + ": " + number(value);
  if (ceiling != nullptr && row.bytes + row.flops > 0) {
    const double share = row.flops > 0 ? row.tflop_per_s() / ceiling->tflop_per_s() : row.gb_per_s() / ceiling->gb_per_s();
    out += ", \"ceiling\": " + quoted(ceiling->name) + ", \"share_of_ceiling\": " + number(share);
  }
  return out + "}";
}

}  // namespace

std::string result_json(const DeviceProperties& device, std::int32_t driver_version, std::int32_t toolkit_version, const std::string& commit, const std::string& date, const Ceilings& ceilings,
                        const std::vector<Row>& rows) {
  std::string out = "{\n  \"name\": \"gpu\", \"commit\": " + quoted(commit) + ", \"date\": " + quoted(date) + ",\n  \"machine\": {\"device\": " + quoted(describe(device)) +
                    ", \"driver_runs_cuda\": " + quoted(cuda_version_name(driver_version)) + ", \"toolkit\": " + quoted(cuda_version_name(toolkit_version)) +
                    ", \"multiprocessors\": " + std::to_string(device.multiprocessors) + "},\n  \"rows\": [\n";
  for (const Row* ceiling : {&ceilings.copy, &ceilings.read, &ceilings.host_to_device, &ceilings.matmul}) out += row_json(*ceiling, nullptr) + ",\n";
  for (std::size_t i = 0; i < rows.size(); ++i) out += row_json(rows[i], rows[i].flops > 0 ? &ceilings.matmul : &ceilings.copy) + (i + 1 < rows.size() ? ",\n" : "\n");
  return out + "  ]\n}\n";
}

}  // namespace quire::cuda::bench
