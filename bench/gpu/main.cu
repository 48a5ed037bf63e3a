// Measures the speed of the CUDA kernels and of the engine against ceilings of the same run. Every
// section runs in its own process.
//   quire_gpu_bench [option]...
//     --out DIR        each row as a line of JSON, as soon as it is measured, to DIR/bench.jsonl
//     --json FILE      everything at the end
//     --commit C, --date D  of that file
//     --model DIR      folder of a tokenizer's files
//     --sections A,B   those alone: ceilings, attention, rows, prefill, decode, questions,
//                      retrieve, offload, team
//     --quick          fewer samples, a smaller model
//     --once           each kernel's operation a single time, for a profiler
//     --device N, --seconds S, --dry-run
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
  std::string out, json, commit, date, model_dir, wanted;
  std::int64_t device_idx = 0;
  double seconds = 560;
  bool quick = false, once = false, dry_run = false;
};

void tell_device(const Bench& bench, const SectionOutput& out) {
  const DeviceReport report = probe_devices();
  out.text("device", describe(bench.device()));
  out.text("driver_runs_cuda", cuda_version_name(report.driver_version));
  out.text("toolkit", cuda_version_name(report.toolkit_version));
  out.text("multiprocessors", std::to_string(bench.device().multiprocessors));
}

bool is_wanted(const Settings& s, const std::string& name) {
  return s.wanted.empty() || ("," + s.wanted + ",").find("," + name + ",") != std::string::npos;
}

std::vector<Section> sections(const Settings& s) {
  const auto kernels = [&s](void (*cases)(Bench&, const SectionOutput&)) {
    return [&s, cases](const SectionOutput& out) {
      Bench bench(s.device_idx, s.quick, s.once);
      cases(bench, out);
    };
  };
  std::vector<Section> all = {{"ceilings", 60,
                               [&s](const SectionOutput& out) {
                                 Bench bench(s.device_idx, s.quick, s.once);
                                 tell_device(bench, out);
                                 const Ceilings c = measure_ceilings(bench);
                                 for (const Row& row : {c.copy, c.read, c.host_to_device, c.matmul})
                                   out.row(row);
                               }},
                              {"attention", 60, kernels(attention_cases)},
                              {"rows", 60, kernels(row_cases)}};
  for (Section& section : engine_sections({s.device_idx, s.quick, s.model_dir}))
    all.push_back(std::move(section));
  std::erase_if(all, [&s](const Section& section) { return !is_wanted(s, section.name); });
  return all;
}

void append(const Settings& s, const std::string& line) {
  if (s.out.empty()) return;
  std::ofstream file(s.out + "/bench.jsonl", std::ios::app);
  file << line + '\n' << std::flush;
  if (!file) std::fprintf(stderr, "error: %s/bench.jsonl cannot be written\n", s.out.c_str());
}

int run(const Settings& s) {
  std::vector<PlannedCase> plan = planned_kernel_cases(s.quick);
  for (PlannedCase& planned : planned_engine_cases(s.quick)) plan.push_back(std::move(planned));
  std::erase_if(plan, [&s](const PlannedCase& planned) { return !is_wanted(s, planned.section); });
  print_plan(plan, s.seconds);
  Ceilings ceilings;
  std::vector<SectionResult> results;
  const auto take_ceilings = [&ceilings](const SectionResult& result) {
    if (result.name == "ceilings" && result.rows.size() == 4)
      ceilings = {result.rows[0], result.rows[1], result.rows[2], result.rows[3]};
  };
  if (!s.dry_run) {
    results = run_sections(sections(s), s.seconds,
                           {[&](const Section& section, const Row& row) {
                              append(s, row_line(section.name, row, ceilings));
                            },
                            [&](const SectionResult& result) {
                              take_ceilings(result);
                              append(s, section_line(result));
                            }});
  }
  std::vector<Row> rows;
  bool failed = false;
  for (const SectionResult& result : results) {
    failed = failed || !result.error.empty();
    if (result.name != "ceilings" || ceilings.copy.median_us == 0)
      rows.insert(rows.end(), result.rows.begin(), result.rows.end());
  }
  print_shares(rows, ceilings);
  if (s.json.empty()) return failed ? 1 : 0;
  std::ofstream out(s.json);
  out << result_json(results, s.commit, s.date, ceilings, rows);
  out.close();
  if (!out) std::fprintf(stderr, "error: %s cannot be written\n", s.json.c_str());
  return !out || failed ? 1 : 0;
}

/// Reads the options; false: one is not known or lacks its value.
bool read_options(int argc, char** argv, Settings& s) {
  const auto is = [&](int i, const char* name) { return std::strcmp(argv[i], name) == 0; };
  for (int i = 1; i < argc; ++i) {
    if (is(i, "--quick")) {
      s.quick = true;
    } else if (is(i, "--once")) {
      s.once = true;
    } else if (is(i, "--dry-run")) {
      s.dry_run = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (is(i, "--device")) {
      s.device_idx = std::atol(argv[++i]);
    } else if (is(i, "--seconds")) {
      s.seconds = std::atof(argv[++i]);
    } else {
      std::string* text = is(i, "--out")        ? &s.out
                          : is(i, "--json")     ? &s.json
                          : is(i, "--commit")   ? &s.commit
                          : is(i, "--date")     ? &s.date
                          : is(i, "--model")    ? &s.model_dir
                          : is(i, "--sections") ? &s.wanted
                                                : nullptr;
      if (text == nullptr) return false;
      *text = argv[++i];
    }
  }
  return true;
}

}  // namespace
}  // namespace quire::cuda::bench

int main(int argc, char** argv) {
  quire::cuda::bench::Settings settings;
  if (!quire::cuda::bench::read_options(argc, argv, settings)) {
    std::fprintf(stderr, "usage: quire_gpu_bench [option]...; bench/gpu/main.cu lists them\n");
    return 2;
  }
  return quire::cuda::bench::run(settings);
}
