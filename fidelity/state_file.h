/// Writes finished rows of a run to disk as they come, so that an interrupted run continues where
/// it stopped.
///
/// The file has JSON lines: the first identifies what the rows belong to, each further one is a
/// row. An incomplete row (the process died while writing it) is ignored. Rows of another model,
/// suite or setting are not used.
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
  /// suite hash, settings, program); otherwise starts a new file. Errors: kIo.
  static Result<std::unique_ptr<StateFile>> open(const std::string& path,
                                                 const std::string& identity);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  /// Returns the row; null: not measured yet. `question` is the hash of the record; `strategy` is
  /// the canonical text of the spec.
  const Measurement* find(const std::string& question, const std::string& strategy) const;
  /// Adds a row and passes it to the operating system before it returns. Errors: kIo.
  Status add(const std::string& question, const std::string& strategy, const Measurement& row);
  std::size_t size() const { return rows_.size(); }
  /// Returns true if there was a file with another identity.
  bool restarted() const { return restarted_; }

 private:
  std::map<std::pair<std::string, std::string>, Measurement> rows_;
  std::string path_;
  std::FILE* file_ = nullptr;
  bool restarted_ = false;
};

}  // namespace quire
