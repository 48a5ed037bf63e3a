/// Reads lines of a plain or gzip file in pieces, so that the file may be larger than memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire {

/// LineSource supplies lines. Threads: not shared.
class LineSource {
 public:
  virtual ~LineSource() = default;
  /// Returns the next line without its end ("\n" or "\r\n"); none: the end of the file. The last
  /// line may lack its newline. Errors, with the line number: kIo, kCorruption (a gzip stream that
  /// is damaged or ends early), kInvalidArgument (a line above kMaxLineBytes).
  virtual Result<std::optional<std::string>> next() = 0;
  /// Returns the number of the line that next() returned last, from 1.
  std::int64_t line_number() const { return line_number_; }

 protected:
  std::int64_t line_number_ = 0;
};

inline constexpr std::size_t kMaxLineBytes = std::size_t{256} << 20;

/// Opens a plain or gzip file, recognised by its first bytes. Errors: kNotFound, kIo.
Result<std::unique_ptr<LineSource>> open_lines(const std::string& path);
/// Returns the lines of bytes in memory.
std::unique_ptr<LineSource> lines_of(std::string bytes);

}  // namespace quire
