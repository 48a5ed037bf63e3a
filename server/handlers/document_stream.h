/// Takes documents in as application/x-ndjson, in a body of any length.
///
/// The body goes to a temporary file first. Then each line is checked, so that a wrong line
/// refuses the whole call. Then the documents become jobs, as fast as the ingest queue has room.
/// Memory is bounded by one job and by the longest line.
#pragma once

#include <memory>
#include <string_view>

#include "server/http/http_server.h"
#include "server/service/call.h"

namespace quire {

inline constexpr std::string_view kNdjsonType = "application/x-ndjson";

/// Returns the sink for bodies read as a stream; null: the body is collected. A call with an
/// idempotency key is collected, because its body decides whether it is a repetition.
std::shared_ptr<BodySink> make_document_sink(Call& call, const HttpRequest& request);

void post_document_stream(std::shared_ptr<Call> call);

}  // namespace quire
