/// Writes finished rows of a run to disk as they come, so that an interrupted run continues where
/// it stopped.
///
/// The file has JSON lines: the first identifies what the rows belong to, each further one is a
/// row, with the build that measured it. An incomplete row (the process died while writing it) is
/// ignored. Rows of another model, suite or setting are not used, and those of another build only
/// if asked for.
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
  /// Keeps rows in memory, without a file.
  StateFile() = default;
  /// Reads `path` if it exists and begins with `identity` (one line of text: model fingerprint,
  /// suite hash, settings); otherwise starts a new file. New rows are those of `build` (commit and
  /// instruction set). Rows of other builds are taken with `any_build`, else left out. Errors: kIo.
  static Result<std::unique_ptr<StateFile>> open(const std::string& path,
                                                 const std::string& identity,
                                                 const std::string& build = "",
                                                 bool any_build = false);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Returns the row; null: not measured yet. `question` is the hash of the record; `strategy` is
  /// the canonical text of the spec.
  const Measurement* find(const std::string& question, const std::string& strategy) const;
  /// Adds a row and passes it to the operating system before it returns. Errors: kIo.
  Status add(const std::string& question, const std::string& strategy, const Measurement& row);
  std::size_t size() const { return rows_.size(); }
  /// Returns how many rows each build has measured.
  std::map<std::string, std::size_t> builds() const;
  /// Returns true if there was a file with another identity, or rows of another build were left
  /// out.
  bool restarted() const { return restarted_; }

 private:
  struct Row {
    Measurement measurement;
    std::string build;
  };
  std::map<std::pair<std::string, std::string>, Row> rows_;
  std::string path_, build_;
  std::FILE* file_ = nullptr;
  bool restarted_ = false;
};

}  // namespace quire
