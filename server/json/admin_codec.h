/// Bodies of the admin endpoints.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "cachestore/format/segment.h"

namespace quire {

/// POST /v1/admin/cache/evict.
struct EvictBody {
  Tier tier = Tier::kDram;
  std::vector<std::string> document_ids;  ///< empty: any document
  /// Matches data neither written nor used for this long.
  std::optional<std::int64_t> older_than_seconds;
  std::uint64_t target_bytes = 0;  ///< 0: everything that matches
  bool dry_run = false, force = false;
};
std::optional<JsonError> read_evict(const boost::json::value& body, EvictBody& out);

/// POST /v1/admin/cache/pin and /unpin.
struct PinBody {
  std::vector<std::string> document_ids;  ///< at least one
  Tier tier = Tier::kDisk;                ///< kDram: also loaded into memory
};
std::optional<JsonError> read_pin(const boost::json::value& body, PinBody& out);

/// Reads the body of POST /v1/admin/cache/export: ids, or none for all documents.
std::optional<JsonError> read_export(const boost::json::value& body,
                                     std::vector<std::string>& document_ids);

}  // namespace quire
