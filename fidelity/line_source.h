/// Lines of a plain or gzip file, read in pieces, so that a file larger than memory can be walked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// Where lines come from. Not shared between threads.
class LineSource {
 public:
  virtual ~LineSource() = default;
  /// The next line without its end ("\n" or "\r\n"); empty at the end of the file. The last line
  /// may lack its newline. Errors: kIo, kCorruption (a gzip stream that is damaged or ends early),
  /// kInvalidArgument (a line above kMaxLineBytes), with the line number.
  virtual Result<std::optional<std::string>> next() = 0;
  /// Number of the line next() gave last, from 1.
  std::int64_t line_number() const { return line_number_; }

 protected:
  std::int64_t line_number_ = 0;
};

inline constexpr std::size_t kMaxLineBytes = std::size_t{256} << 20;

/// Plain or gzip, told apart by the first bytes. Errors: kNotFound, kIo.
Result<std::unique_ptr<LineSource>> open_lines(const std::string& path);
/// Lines of bytes in memory.
std::unique_ptr<LineSource> lines_of(std::string bytes);

}  // namespace quire
