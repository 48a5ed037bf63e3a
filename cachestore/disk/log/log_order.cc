#include "cachestore/disk/log/log_order.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cachestore/disk/log/folder_files.h"
#include "cachestore/disk/log/log_gaps.h"
#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// So much of a log is searched for its first record.
constexpr std::size_t kMostRead = 4 * kLogBlock;

struct Log {
  std::string name;
  std::optional<std::uint64_t> first_write;  // none: the first record is no batch
  std::uint32_t checksum = 0;                // of the first record, or of its first piece
  bool empty = false;                        // no whole batch in it has a write
  /// Whether this one may come after the other. A batch without writes takes no number. RocksDB
  /// begins a log with one if the end of the log before was torn, and so it does again if that log
  /// got no write until its own end was torn.
  bool follows(const Log& other) const {
    return first_write > other.first_write ||
           (first_write == other.first_write && (checksum != other.checksum || other.empty));
  }
};

/// Returns whether no batch of a log has a write.
bool has_no_write(const fs::path& path) {
  bool failed = false;
  const LogRecords found = log_records(file_bytes(path.string(), &failed));
  return !failed && std::ranges::all_of(found.records, [](const std::string& record) {
    const auto batch = BatchNumbers::of(record);
    return batch && batch->count == 0;
  });
}

std::optional<Log> read_log(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes(kMostRead, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  for (std::size_t at = 0; at + kLogHeader <= bytes.size();) {
    const auto piece = log_piece_at(bytes, at);
    if (piece && piece->type <= LogPiece::kFirst) {
      Log out{.name = path.filename().string(), .checksum = piece->checksum};
      // The records of a manifest, which has the same framing, are shorter or begin with text.
      const auto batch = BatchNumbers::of(piece->data);
      if (batch) out.first_write = batch->first;
      out.empty = batch && batch->count == 0 && has_no_write(path);
      return out;
    }
    // What follows a damaged record is found in the next block, as RocksDB finds it.
    at = piece ? at + piece->bytes() : at - at % kLogBlock + kLogBlock;
    if (kLogBlock - at % kLogBlock < kLogHeader) at += kLogBlock - at % kLogBlock;
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> misplaced_logs(const std::string& folder) {
  QUIRE_ASSIGN_OR_RETURN(const auto files, logs_in(folder));
  std::vector<std::string> out;
  std::vector<Log> logs;
  for (const auto& [number, path] : files) {
    auto log = read_log(path);
    if (log && !log->first_write) out.push_back(log->name);
    if (log && log->first_write) logs.push_back(std::move(*log));
  }
  // The longest row of logs that follow one another: its length up to each, and the one before.
  std::vector<std::size_t> length(logs.size(), 1), before(logs.size(), logs.size());
  std::size_t last = logs.size();
  for (std::size_t i = 0; i < logs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (!logs[i].follows(logs[j]) || length[j] < length[i]) continue;
      length[i] = length[j] + 1;
      before[i] = j;
    }
    if (last == logs.size() || length[i] >= length[last]) last = i;
  }
  std::vector<bool> right(logs.size(), false);
  for (std::size_t i = last; i < logs.size(); i = before[i]) right[i] = true;
  for (std::size_t i = 0; i < logs.size(); ++i)
    if (!right[i]) out.push_back(logs[i].name);
  return out;
}

}  // namespace quire
