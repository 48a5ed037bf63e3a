/// How a query used the cache: the object `cache` of its replies.
#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

#include "base/index.h"
#include "server/reply/query_record.h"
#include "server/reply/reply.h"

namespace quire {

/// TierUse is what of a query's documents was found in one tier. The statistics must outlive it.
struct TierUse {
  const QueryStats& stats;
  Tier tier;
  std::int64_t of(const std::int64_t (&counts)[5]) const {
    const auto i = at(tier);
    return i < std::size(counts) ? counts[i] : 0;
  }
};
const Reply<TierUse>& tier_use_reply();

const Reply<QueryRecord>& cache_reply();
boost::json::object cache_json(const QueryRecord& record);
/// Returns HIT, PARTIAL, MISS or BYPASS.
std::string_view cache_header(const Plan& plan);

/// Replies and explanations both show these.
const Reply<SparsePrefill>& sparse_prefill_reply();
boost::json::object options_json(const PlugOptions& options);

/// Returns whether the context is of this document of the prompt.
bool belongs_to(const PlannedContext& context, const QueryDocument& document);

}  // namespace quire
