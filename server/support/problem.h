/// The error body of the API: RFC 9457 members plus `error` in the form of OpenAI clients.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_reader.h"
#include "base/status.h"
#include "server/http/http_message.h"

namespace quire {

struct Problem {
  std::string code;  ///< one of problem_kinds()
  std::string detail, param;
  boost::json::object extra;  ///< further members: limit, actual, document_ids, job_id, ...
  std::int64_t retry_after_ms = 1000;  ///< sent if the code says that a retry can help
  std::vector<std::pair<std::string, std::string>> headers;
};

/// The form of a path's error bodies.
enum class ErrorStyle : unsigned char {
  kNative,     ///< problem+json, which OpenAI's clients read, too
  kOpenAi,     ///< the same as plain JSON
  kAnthropic,  ///< {"type": "error", "error": {"type", "message"}, "request_id"}
  kOllama      ///< {"error": message}
};

/// The advice of a reply about a retry.
enum class RetryHint : unsigned char { kNone, kRetryAfter, kDoNotRetry };

struct ProblemKind {
  std::string_view code;
  int status;
  std::string_view title, type;  ///< type: OpenAI's error type
  RetryHint retry;
};
/// Returns every code of the API.
const std::vector<ProblemKind>& problem_kinds();
/// Returns the kind of a code; unknown codes give the kind of "internal".
const ProblemKind& problem_kind(std::string_view code);

Problem make_problem(std::string code, std::string detail, std::string param = {});
Problem problem_of(const JsonError& error);
/// Returns the message with the field before it if it begins with its verb ("must be ..."), as a
/// Status may say it.
std::string with_subject(std::string_view message, std::string_view field);
/// Makes a problem from a Status. `code` replaces the table's code where the caller knows better.
/// kInternal shows no inner text.
Problem problem_of(const Status& status, std::string_view code = {});

/// Returns the problem as a JSON object, as in bodies and in SSE `error` events.
boost::json::object problem_body(const Problem& problem, std::string_view instance,
                                 std::string_view request_id);
/// Returns Anthropic's error object, as in bodies and in SSE `error` events. Of the further members
/// it has `details`, which its clients read.
boost::json::object anthropic_error(const Problem& problem, std::string_view request_id);
HttpResponse problem_response(const Problem& problem, ErrorStyle style, std::string_view instance,
                              std::string_view request_id);

}  // namespace quire
