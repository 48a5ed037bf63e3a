// quire_gpu_bench OUT.json COMMIT DATE MODEL_DIR [--quick] [--device N] [--kernels-only]: speed of the CUDA kernels and of the engine against ceilings of the same run.
#include <cstdio>
#include <cstring>
#include <fstream>

#include "bench/gpu/engine_cases.h"
#include "bench/gpu/measure.h"

namespace quire::cuda::bench {
namespace {

struct Settings {
  std::string file, commit, date, model_dir;
  std::int64_t device_idx = 0;
  bool quick = false, kernels_only = false;
};

int run(const Settings& s) {
  const DeviceReport report = probe_devices();
  DeviceProperties device;
  Ceilings ceilings;
  std::vector<Row> rows;
  {
    Bench bench(s.device_idx, s.quick);
    device = bench.device();
    std::fprintf(stderr, "%s, driver for CUDA %s, toolkit %s\n", describe(device).c_str(), cuda_version_name(report.driver_version).c_str(), cuda_version_name(report.toolkit_version).c_str());
    ceilings = measure_ceilings(bench);
    rows = attention_cases(bench);
    for (Row& row : row_cases(bench)) rows.push_back(std::move(row));
  }  // its memory goes back before the engine asks for some
  if (!s.kernels_only) {
    for (Row& row : engine_cases({QUIRE_CUDA_LIBRARY_FILE, s.device_idx, s.quick, s.model_dir})) rows.push_back(std::move(row));
  }
  print_shares(rows, ceilings);
  std::ofstream out(s.file);
  out << result_json(device, report.driver_version, report.toolkit_version, s.commit, s.date, ceilings, rows);
  out.close();
  if (!out) {
    std::fprintf(stderr, "error: %s cannot be written\n", s.file.c_str());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace quire::cuda::bench

int main(int argc, char** argv) {
  quire::cuda::bench::Settings settings;
  for (int i = 5; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) settings.quick = true;
    else if (std::strcmp(argv[i], "--kernels-only") == 0) settings.kernels_only = true;
    else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc) settings.device_idx = std::atol(argv[++i]);
    else argc = 0;
  }
  if (argc < 5) {
    std::fprintf(stderr, "usage: quire_gpu_bench OUT.json COMMIT DATE MODEL_DIR [--quick] [--device N] [--kernels-only]\n");
    return 2;
  }
  settings.file = argv[1];
  settings.commit = argv[2];
  settings.date = argv[3];
  settings.model_dir = argv[4];
  return quire::cuda::bench::run(settings);
}
