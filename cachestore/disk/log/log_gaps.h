/// Finds places of a record's logs where changes are missing between others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// The numbers that a batch of changes takes. RocksDB gives each change the next one.
struct BatchNumbers {
  std::uint64_t first = 0;
  std::uint32_t count = 0;
  std::uint64_t next() const { return first + count; }
  /// Reads them from a record of a log; none: it is no batch.
  static std::optional<BatchNumbers> of(std::string_view record);
};

/// Behind this place whole batches follow that are not the next ones. RocksDB takes zeros for the
/// end of what was written into a block and goes on behind them, so it does not notice.
struct LogGap {
  std::string log;                  ///< name of the file in which the batches behind it begin
  bool at_begin = false;            ///< before it the logs have no batch
  std::size_t whole = 0;            ///< bytes of this file before the gap
  std::uint64_t expected = 0;       ///< number of the change that should follow
  std::uint64_t found = 0;          ///< number of the one that does; 0: it is no batch
  std::vector<std::string> behind;  ///< all records behind the gap, later logs included
};

/// Where find_log_gap() begins to look.
struct LogsToRead {
  std::uint64_t first_log = 0;  ///< number of a log: older ones may be left over, and do not count
  /// A first change of a higher number is behind a gap, too.
  std::uint64_t most_first = UINT64_MAX;
};

/// Returns the first gap in the logs of a folder. Reads all of them. `first`, if not null, receives
/// the number of the first change; 0: there is none. Errors: kIo.
Result<std::optional<LogGap>> find_log_gap(const std::string& folder, const LogsToRead& logs = {},
                                           std::uint64_t* first = nullptr);

}  // namespace quire
