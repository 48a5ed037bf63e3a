/// Small things several handlers share.
#pragma once

#include <memory>
#include <string>

#include "ingest/ingest_service.h"
#include "server/json/parse.h"
#include "server/json/reader.h"
#include "server/service/call.h"
#include "server/service/services.h"

namespace quire {

/// Fails the call with the problem of a document operation.
void fail_document(Call& call, const Status& status, const std::string& id);
void fail_job(Call& call, const Status& status, const std::string& id);
/// The problem of an IngestService error that is not about one id.
Problem ingest_problem(const Status& status);
/// GET /v1/admin/cache/stats, and the `stats` event.
boost::json::object cache_stats_json(Services& services);
/// Fails the call and is true when there is an error.
bool failed(Call& call, const std::optional<ReadError>& error);

}  // namespace quire
