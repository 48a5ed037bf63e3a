/// Reads lines that a person types.
#pragma once

#include <memory>
#include <string>

namespace quire {

/// LineReader reads standard input by lines. At a terminal a line can be edited, and the arrow keys
/// bring earlier ones back; they are kept in memory only. Prompts go to standard error. There is
/// one at a time, for one thread.
class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  bool terminal() const { return editor_ != nullptr; }
  /// Returns false at the end of the input. The line has no end of line.
  bool read(const char* prompt, std::string& line);

 private:
  struct Editor;
  std::unique_ptr<Editor> editor_;  ///< null: standard input is no terminal
};

}  // namespace quire
