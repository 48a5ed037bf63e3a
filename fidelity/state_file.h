/// Finished rows of a run, on disk as they come, so that an interrupted run goes on where it
/// stopped.
///
/// JSON lines: the first says what the rows belong to, each further one is a row. A row that is not
/// whole (the process died while writing it) is left out. Rows of another model, suite or setting
/// are not taken.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "fidelity/measurement.h"

namespace quire {

class StateFile {
 public:
  /// Without a file: rows are kept in memory.
  StateFile() = default;
  /// Reads `path` if it is there and begins with `identity` (one line of text: model fingerprint,
  /// suite hash, settings, program), else starts it anew. Errors: kIo.
  static Result<std::unique_ptr<StateFile>> open(const std::string& path,
                                                 const std::string& identity);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Null when it was not measured yet. `question`: hash of the record; `strategy`: canonical text
  /// of the spec.
  const Measurement* find(const std::string& question, const std::string& strategy) const;
  /// Written through to the operating system before it returns. Errors: kIo.
  Status add(const std::string& question, const std::string& strategy, const Measurement& row);
  std::size_t size() const { return rows_.size(); }
  /// True when there was a file, but of something else.
  bool restarted() const { return restarted_; }

 private:
  std::map<std::pair<std::string, std::string>, Measurement> rows_;
  std::string path_;
  std::FILE* file_ = nullptr;
  bool restarted_ = false;
};

}  // namespace quire
