/// The one error body of the API: RFC 9457 members plus `error` as OpenAI clients read it.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "server/http/http_message.h"
#include "server/json/reader.h"

namespace quire {

struct Problem {
  std::string code;  ///< of problem_kinds()
  std::string detail, param;
  boost::json::object extra;  ///< further members: limit, actual, document_ids, job_id, ...
  std::int64_t retry_after_ms = 1000;  ///< sent where the code says that a retry can help
  std::vector<std::pair<std::string, std::string>> headers;
};

/// Which bodies a path speaks.
enum class ErrorStyle : unsigned char { kNative, kOpenAi };

/// How a retry is spoken of.
enum class RetryHint : unsigned char { kNone, kRetryAfter, kDoNotRetry };

struct ProblemKind {
  std::string_view code;
  int status;
  std::string_view title, type;  ///< type: OpenAI's error type
  RetryHint retry;
};
/// Every code there is (api section 7).
const std::vector<ProblemKind>& problem_kinds();
/// Unknown codes give the kind of "internal".
const ProblemKind& problem_kind(std::string_view code);

Problem make_problem(std::string code, std::string detail, std::string param = {});
Problem problem_of(const ReadError& error);
/// From a Status; `code` replaces the table's word where the caller knows better. kInternal shows
/// no inner text.
Problem problem_of(const Status& status, std::string_view code = {});

/// A member like "error" of a job's item: {"code","message","param"}.
boost::json::object item_error(std::string_view code, std::string_view message,
                               std::string_view param);
/// The problem as a JSON object, as it stands in bodies and in SSE `error` events.
boost::json::object problem_body(const Problem& problem, std::string_view instance,
                                 std::string_view request_id);
HttpResponse problem_response(const Problem& problem, ErrorStyle style, std::string_view instance,
                              std::string_view request_id);

}  // namespace quire
