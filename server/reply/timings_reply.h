/// The times of a query: members of `timings` in replies, and histograms of the service.
#pragma once

#include <boost/json/object.hpp>
#include <span>
#include <string_view>

#include "server/reply/query_record.h"
#include "server/reply/reply.h"

namespace quire {

/// QueryTime describes one time of a query.
struct QueryTime {
  enum class Shown : std::uint8_t {
    kPromised,  ///< always there, and the API says so
    kAlways,
    kIfSpent,  ///< there if it is not 0
  };
  std::string_view name;                ///< in replies
  double (*ms)(const QueryRecord& of);  ///< in milliseconds
  std::string_view about;               ///< for the description of the API and for Prometheus
  Shown shown = Shown::kAlways;
  std::string_view metric = {};  ///< name of its histogram in seconds; empty: it has none
  /// The histogram's label: strategy, compress or prompt_compression. Queries without a compressor
  /// are not observed by the last two. `draft` is no label: queries with a draft are observed.
  std::string_view by = {};
};

/// In the order of the reply.
std::span<const QueryTime> query_times();

const Reply<QueryRecord>& timings_reply();
boost::json::object timings_json(const QueryRecord& record);

}  // namespace quire
