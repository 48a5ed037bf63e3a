/// Parts of the GPU benchmark, each in a process of its own, so that one that fails, hangs or loses
/// the device takes nothing with it. Plain C++.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "bench/gpu/row.h"

namespace quire::cuda::bench {

/// Where a section puts what it has measured, as soon as it has.
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
  double limit_s = 0;                             ///< it is killed after so long
  std::function<void(const SectionOutput&)> run;  ///< in the child; may end its process
};

struct SectionResult {
  std::string name;
  std::string error;  ///< empty: it ended well
  double seconds = 0;
  std::vector<Row> rows;  ///< also those before an error
  std::map<std::string, std::string> texts;
};

/// One after the other, whatever became of those before. A section gets no more than is left of
/// budget_s, and none is begun with nothing left. The caller has no threads, and has touched
/// nothing that a child may not inherit (no CUDA).
std::vector<SectionResult> run_sections(std::span<const Section> sections, double budget_s);

}  // namespace quire::cuda::bench
