// quire_gpu_bench OUT.json COMMIT DATE [--quick] [--device N]: speed of the CUDA kernels against ceilings of the same run.
#include <cstdio>
#include <cstring>
#include <fstream>

#include "bench/gpu/measure.h"

namespace quire::cuda::bench {
namespace {

int run(const std::string& file, const std::string& commit, const std::string& date, std::int64_t device_idx, bool quick) {
  Bench bench(device_idx, quick);
  const DeviceReport report = probe_devices();
  std::fprintf(stderr, "%s, driver for CUDA %s, toolkit %s\n", describe(bench.device()).c_str(), cuda_version_name(report.driver_version).c_str(), cuda_version_name(report.toolkit_version).c_str());
  const Ceilings ceilings = measure_ceilings(bench);
  std::vector<Row> rows = attention_cases(bench);
  for (Row& row : row_cases(bench)) rows.push_back(std::move(row));
  std::ofstream out(file);
  out << result_json(bench.device(), report.driver_version, report.toolkit_version, commit, date, ceilings, rows);
  out.close();
  if (!out) {
    std::fprintf(stderr, "error: %s cannot be written\n", file.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace quire::cuda::bench

int main(int argc, char** argv) {
  bool quick = false;
  long device = 0;
  for (int i = 4; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
    else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) device = std::atol(argv[++i]);
    else argc = 0;
  }
  if (argc < 4) {
    std::fprintf(stderr, "usage: quire_gpu_bench OUT.json COMMIT DATE [--quick] [--device N]\n");
    return 2;
  }
  return quire::cuda::bench::run(argv[1], argv[2], argv[3], device, quick);
}
