/// A model's own answers to questions of a public set, with what citations are made from. They are
/// kept in a file, so that rules can be compared without the model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "fidelity/calibrate/citation_examples.h"
#include "fidelity/suite.h"

namespace quire::bench {

/// Asks the model that it opens with the first question that is not in the file. Threads: one.
class CitedAnswers {
 public:
  /// Reads the answers of `model`, a model's folder, from `file`, which may be missing.
  CitedAnswers(std::string file, std::string model);
  ~CitedAnswers();

  /// Returns the answer to a record's question over its documents, which are part of the prompt as
  /// text. A new answer is appended to the file. An error ends the program.
  CitableAnswer answer(const SuiteRecord& record);
  /// Returns the number of answers that the model gave now, not the file.
  std::size_t asked() const { return asked_; }

 private:
  struct Opened;

  void open();
  std::string ask(const SuiteRecord& record);
  CitableAnswer parse(const SuiteRecord& record, const std::string& line) const;

  const std::string file_, model_;
  std::vector<std::pair<std::string, std::string>> known_;  ///< lines by record_hash(), sorted
  std::unique_ptr<Opened> opened_;
  std::size_t asked_ = 0;
};

}  // namespace quire::bench
