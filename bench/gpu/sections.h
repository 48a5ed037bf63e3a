/// Parts of the GPU benchmark, each in its own process. A part that fails, hangs or loses the
/// device therefore does not affect the others. Plain C++.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu/row.h"

namespace quire::cuda::bench {

/// Takes the measurements of a section as soon as they exist.
class SectionOutput {
 public:
  explicit SectionOutput(int file) : file_(file) {}
  void row(const Row& row) const;
  void text(const std::string& name, const std::string& value) const;

 private:
  void send(const std::string& line) const;
  const int file_;
};

struct Section {
  std::string name;
  double limit_s = 0;                             ///< seconds after which it is killed
  std::function<void(const SectionOutput&)> run;  ///< runs in the child and may end its process
};

struct SectionResult {
  std::string name;
  std::string error;  ///< empty: success
  double seconds = 0;
  std::vector<Row> rows;  ///< also those before an error
  std::map<std::string, std::string> texts;
};

/// Is told of what the sections give, in the caller's process, as soon as it is there.
struct SectionEvents {
  std::function<void(const Section&, const Row&)> row = nullptr;
  std::function<void(const SectionResult&)> ended = nullptr;
};

/// Runs the sections one after the other, whatever the result of earlier ones. A section gets at
/// most the rest of budget_s, and none begins without any rest. The caller must have no threads and
/// no state that a child may not inherit (no CUDA).
std::vector<SectionResult> run_sections(std::span<const Section> sections, double budget_s,
                                        const SectionEvents& events = {});

}  // namespace quire::cuda::bench
