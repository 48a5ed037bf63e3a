/// Finds the torn end that a power failure leaves in a manifest of RocksDB, and edits that it lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace quire {

/// Returns the length up to which a manifest's records are whole, if behind it lie only parts of a
/// record that was being written; none if all records are whole, or if a whole one lies behind a
/// damaged one. RocksDB syncs a manifest after each edit or group of edits, so that this is mostly
/// damage of another kind, which is for the repair. Formats other than that of RocksDB's log files
/// (blocks of 32 KiB; records of checksum, length, type and data) give none.
std::optional<std::uint64_t> torn_manifest_end(std::string_view manifest);

/// Returns the length up to which a manifest's records are whole, one after the other.
std::uint64_t whole_edits(std::string_view manifest);

/// Returns whether a whole record lies behind a damaged one or behind zeros. RocksDB takes zeros
/// for the end of what was written into a block, and does not notice the edits that were in it.
bool lost_an_edit(std::string_view manifest);

}  // namespace quire
