// Measures the speed of the CUDA kernels and of the engine against ceilings of the same run. Every
// section runs in its own process.
//   quire_gpu_bench OUT.json COMMIT DATE MODEL_DIR [--quick] [--device N] [--kernels-only]
//   [--seconds S] [--dry-run]
// Exit status: 0 all sections succeeded, 1 one failed (the rest is written), 2 wrong usage.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "bench/gpu/engine_cases.h"
#include "bench/gpu/measure.h"
#include "bench/gpu/plan.h"
#include "bench/gpu/sections.h"

namespace quire::cuda::bench {
namespace {

struct Settings {
  std::string file, commit, date, model_dir;
  std::int64_t device_idx = 0;
  double seconds = 560;
  bool quick = false, kernels_only = false, dry_run = false;
};

void tell_device(const Bench& bench, const SectionOutput& out) {
  const DeviceReport report = probe_devices();
  out.text("device", describe(bench.device()));
  out.text("driver_runs_cuda", cuda_version_name(report.driver_version));
  out.text("toolkit", cuda_version_name(report.toolkit_version));
  out.text("multiprocessors", std::to_string(bench.device().multiprocessors));
}

std::vector<Section> sections(const Settings& s) {
  const auto kernels = [&s](std::vector<Row> (*cases)(Bench&)) {
    return [&s, cases](const SectionOutput& out) {
      Bench bench(s.device_idx, s.quick);
      for (const Row& row : cases(bench)) out.row(row);
    };
  };
  std::vector<Section> all = {{"ceilings", 60,
                               [&s](const SectionOutput& out) {
                                 Bench bench(s.device_idx, s.quick);
                                 tell_device(bench, out);
                                 const Ceilings c = measure_ceilings(bench);
                                 for (const Row& row : {c.copy, c.read, c.host_to_device, c.matmul})
                                   out.row(row);
                               }},
                              {"attention", 60, kernels(attention_cases)},
                              {"rows", 60, kernels(row_cases)}};
  if (s.kernels_only) return all;
  for (Section& section :
       engine_sections({QUIRE_CUDA_LIBRARY_FILE, s.device_idx, s.quick, s.model_dir}))
    all.push_back(std::move(section));
  return all;
}

int run(const Settings& s) {
  print_plan(planned_cases(s.quick, s.kernels_only), s.seconds);
  std::vector<SectionResult> results;
  if (!s.dry_run) results = run_sections(sections(s), s.seconds);
  Ceilings ceilings;
  std::vector<Row> rows;
  bool failed = false;
  for (const SectionResult& result : results) {
    failed = failed || !result.error.empty();
    if (result.name == "ceilings" && result.rows.size() == 4)
      ceilings = {result.rows[0], result.rows[1], result.rows[2], result.rows[3]};
    else
      rows.insert(rows.end(), result.rows.begin(), result.rows.end());
  }
  print_shares(rows, ceilings);
  std::ofstream out(s.file);
  out << result_json(results, s.commit, s.date, ceilings, rows);
  out.close();
  if (!out) std::fprintf(stderr, "error: %s cannot be written\n", s.file.c_str());
  return !out || failed ? 1 : 0;
}

}  // namespace
}  // namespace quire::cuda::bench

int main(int argc, char** argv) {
  quire::cuda::bench::Settings settings;
  for (int i = 5; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0)
      settings.quick = true;
    else if (std::strcmp(argv[i], "--kernels-only") == 0)
      settings.kernels_only = true;
    else if (std::strcmp(argv[i], "--dry-run") == 0)
      settings.dry_run = true;
    else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc)
      settings.device_idx = std::atol(argv[++i]);
    else if (std::strcmp(argv[i], "--seconds") == 0 && i + 1 < argc)
      settings.seconds = std::atof(argv[++i]);
    else
      argc = 0;
  }
  if (argc < 5) {
    std::fprintf(stderr,
                 "usage: quire_gpu_bench OUT.json COMMIT DATE MODEL_DIR [--quick] [--device N] "
                 "[--kernels-only] [--seconds S] [--dry-run]\n");
    return 2;
  }
  settings.file = argv[1];
  settings.commit = argv[2];
  settings.date = argv[3];
  settings.model_dir = argv[4];
  return quire::cuda::bench::run(settings);
}
