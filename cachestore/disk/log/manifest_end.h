/// Finds the torn end that a power failure leaves in a manifest of RocksDB.
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

}  // namespace quire
