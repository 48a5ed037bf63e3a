#include "cachestore/disk/log/log_gaps.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

/// A batch begins with the number of its first change (8) and how many they are (4).
constexpr std::size_t kBatchHeader = 12;
/// RocksDB gives no change a number from here on.
constexpr std::uint64_t kNoChange = std::uint64_t{1} << 56;

}  // namespace

std::optional<BatchNumbers> BatchNumbers::of(std::string_view record) {
  if (record.size() < kBatchHeader) return std::nullopt;
  const BatchNumbers out{little_endian(record.substr(0, 8)),
                         static_cast<std::uint32_t>(little_endian(record.substr(8, 4)))};
  return out.first < kNoChange ? std::optional(out) : std::nullopt;
}

Result<std::optional<LogGap>> find_log_gap(const std::string& folder, const LogsToRead& logs,
                                           std::uint64_t* first) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, logs_in(folder));
  std::optional<LogGap> gap;
  std::optional<std::uint64_t> expected;
  bool at_begin = true;
  if (first != nullptr) *first = 0;
  for (const auto& [number, path] : files) {
    if (number < logs.first_log) continue;
    std::error_code ec;
    if (!std::filesystem::is_regular_file(path, ec)) {
      if (!ec || ec == std::errc::no_such_file_or_directory) continue;  // RocksDB says so
      return Status(Code::kIo, "cannot read the log '" + path.string() + "': " + ec.message(),
                    "disk.path");
    }
    bool failed = false;
    LogRecords found = log_records(file_bytes(path.string(), &failed));
    if (failed)
      return Status(Code::kIo, "cannot read the log '" + path.string() + "'", "disk.path");
    for (std::size_t i = 0; i < found.records.size(); ++i) {
      const auto batch = BatchNumbers::of(found.records[i]);
      if (at_begin && batch) {
        if (first != nullptr) *first = batch->first;
        if (batch->first > logs.most_first) expected = logs.most_first;
      }
      if (!gap && (!batch || (expected && batch->first != *expected)))
        gap = LogGap{.log = path.filename().string(),
                     .at_begin = at_begin,
                     .whole = i == 0 ? 0 : found.ends[i - 1],
                     .expected = expected.value_or(0),
                     .found = batch ? batch->first : 0,
                     .behind = {}};
      if (gap)
        gap->behind.push_back(std::move(found.records[i]));
      else
        expected = batch->next();
      at_begin = false;
    }
  }
  return gap;
}

}  // namespace quire
