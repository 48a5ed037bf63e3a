#include "cachestore/disk/log/manifest_end.h"

#include <algorithm>
#include <cstddef>

#include "cachestore/disk/log/log_pieces.h"

namespace quire {
namespace {

/// How far a manifest can be read.
struct Reach {
  std::size_t whole = 0;  ///< end of the last whole record before anything that is not whole
  std::size_t at = 0;     ///< where that begins; the file's end if there is none
};

Reach reach_of(std::string_view manifest) {
  Reach out;
  while (out.at < manifest.size()) {
    if (kLogBlock - out.at % kLogBlock < kLogHeader) {  // too short for a header: zeros
      out.at = std::min(manifest.size(), out.at - out.at % kLogBlock + kLogBlock);
      continue;
    }
    const auto piece = log_piece_at(manifest, out.at);
    if (!piece) break;
    out.at += piece->bytes();
    if (piece->type == LogPiece::kFull || piece->type == LogPiece::kLast) out.whole = out.at;
  }
  return out;
}

/// Returns whether a record begins behind this place. Data of a torn one cannot pass for it: its
/// checksum differs.
bool a_record_follows(std::string_view manifest, std::size_t at) {
  for (std::size_t next = at + 1; next + kLogHeader <= manifest.size(); ++next) {
    const auto piece = log_piece_at(manifest, next);
    if (piece && piece->type <= LogPiece::kFirst) return true;
  }
  return false;
}

}  // namespace

std::optional<std::uint64_t> torn_manifest_end(std::string_view manifest) {
  const Reach reach = reach_of(manifest);
  if (reach.whole == 0 || reach.at >= manifest.size()) return std::nullopt;
  // Whatever follows the first bad byte may be of a record that reached the disk in part, but not
  // the beginning of a later record.
  if (a_record_follows(manifest, reach.at)) return std::nullopt;
  return reach.whole;
}

std::uint64_t whole_edits(std::string_view manifest) { return reach_of(manifest).whole; }

bool lost_an_edit(std::string_view manifest) {
  const Reach reach = reach_of(manifest);
  return reach.at < manifest.size() && a_record_follows(manifest, reach.at);
}

}  // namespace quire
