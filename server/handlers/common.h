/// Helpers shared by several handlers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_reader.h"
#include "ingest/ingest_service.h"
#include "server/reply/admin_reply.h"
#include "server/service/call.h"
#include "server/service/services.h"

namespace quire {

/// Fails the call with the problem of a document operation.
void fail_document(Call& call, const Status& status, const std::string& id);
void fail_job(Call& call, const Status& status, const std::string& id);
/// Returns the problem of an IngestService error that does not concern one id.
Problem ingest_problem(const Status& status);
/// Returns the body of GET /v1/admin/cache/stats and of the `stats` event. `namespaces` are shown
/// if given.
boost::json::object cache_stats_json(
    Services& services, std::optional<std::vector<NamespaceUse>> namespaces = std::nullopt);
/// Returns the problem of a prompt or text that does not fit the model's window; none: the error is
/// another one. `subject` is what has too many tokens, `advice` what to do.
std::optional<Problem> window_problem(const Status& status, std::string_view subject,
                                      std::string_view advice);
/// Fails the call and returns true if there is an error.
bool failed(Call& call, const std::optional<JsonError>& error);

/// Reads options of an ingest from query parameters, for bodies that are not JSON. `document`, if
/// any, receives id and title. Fails the call and returns false for a wrong one.
bool read_batch_parameters(Call& call, BatchOptions& options, DocumentInput* document);

}  // namespace quire
