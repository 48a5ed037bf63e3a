#include "cachestore/disk/log/log_order.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// So much of a log is searched for its first record.
constexpr std::size_t kMostRead = 4 * kLogBlock;
/// A record is a batch of writes: the number of the first one (8), and how many they are (4).
constexpr std::size_t kBatchHeader = 12;
/// RocksDB gives no write a number from here on.
constexpr std::uint64_t kNoWrite = std::uint64_t{1} << 56;

struct Log {
  std::string name;
  std::uint64_t number = 0, first_write = kNoWrite;
  std::uint32_t checksum = 0;  // of the first record, or of its first piece
  /// Whether this one may come after the other. A batch without writes takes no number.
  bool follows(const Log& other) const {
    return first_write > other.first_write ||
           (first_write == other.first_write && checksum != other.checksum);
  }
};

std::optional<Log> read_log(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes(kMostRead, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  for (std::size_t at = 0; at + kLogHeader <= bytes.size();) {
    const auto piece = log_piece_at(bytes, at);
    if (piece && piece->type <= LogPiece::kFirst) {
      Log out{.name = path.filename().string(),
              .number = std::strtoull(path.stem().string().c_str(), nullptr, 10),
              .checksum = piece->checksum};
      // The records of a manifest, which has the same framing, are shorter or begin with text.
      if (piece->data.size() >= kBatchHeader)
        out.first_write = little_endian(piece->data.substr(0, 8));
      return out;
    }
    // What follows a damaged record is found in the next block, as RocksDB finds it.
    at = piece ? at + piece->bytes() : at - at % kLogBlock + kLogBlock;
    if (kLogBlock - at % kLogBlock < kLogHeader) at += kLogBlock - at % kLogBlock;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> misplaced_logs(const std::string& folder) {
  std::vector<std::string> out;
  std::vector<Log> logs;
  std::error_code ec;
  for (const auto& e : fs::directory_iterator(folder, ec)) {
    if (e.path().extension() != ".log") continue;
    auto log = read_log(e.path());
    if (log && log->first_write >= kNoWrite) out.push_back(log->name);
    if (log && log->first_write < kNoWrite) logs.push_back(std::move(*log));
  }
  std::ranges::sort(logs, {}, &Log::number);
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
