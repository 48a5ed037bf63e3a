#include "cachestore/disk/log/manifest_end.h"

#include <algorithm>
#include <cstddef>

#include "cachestore/disk/log/log_pieces.h"

namespace quire {

std::optional<std::uint64_t> torn_manifest_end(std::string_view manifest) {
  std::size_t at = 0, whole = 0;
  while (at < manifest.size()) {
    if (kLogBlock - at % kLogBlock < kLogHeader) {  // too short for a header: zeros
      at = std::min(manifest.size(), at - at % kLogBlock + kLogBlock);
      continue;
    }
    const auto piece = log_piece_at(manifest, at);
    if (!piece) break;
    at += piece->bytes();
    if (piece->type == LogPiece::kFull || piece->type == LogPiece::kLast) whole = at;
  }
  if (whole == 0 || at >= manifest.size()) return std::nullopt;
  // Whatever follows the first bad byte may be of a record that reached the disk in part, but not
  // the beginning of a later record. Data of the torn one cannot pass for it: its checksum differs.
  for (std::size_t next = at + 1; next + kLogHeader <= manifest.size(); ++next) {
    const auto piece = log_piece_at(manifest, next);
    if (piece && piece->type <= LogPiece::kFirst) return std::nullopt;
  }
  return whole;
}

}  // namespace quire
