/// Traces of questions: when they came, which cached contexts they asked over, how many tokens they
/// had. docs/capacity.md describes the forms that are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace quire::capacity {

/// A context of a question: a document, or a chunk of one.
struct TraceContext {
  std::uint64_t key = 0;  ///< equal keys are equal contexts
  std::uint32_t tokens = 0;
  bool operator==(const TraceContext&) const = default;
};

/// One question.
struct TraceRequest {
  double seconds = 0;          ///< when it came
  std::uint64_t affinity = 0;  ///< what a load balancer routes by; 0: nothing
  std::uint32_t question_tokens = 1, answer_tokens = 1;
  std::vector<TraceContext> contexts;
  bool operator==(const TraceRequest&) const = default;
};

enum class TraceForm : std::uint8_t {
  kQuire,     ///< a line of trace_json()
  kMooncake,  ///< Mooncake's request traces: timestamp, input_length, output_length, hash_ids
  kLog,       ///< the service's JSON log, written with log.contexts
};

/// Reads a trace line by line. The first line with a request decides the form. Threads: not shared.
class TraceParser {
 public:
  /// Returns the request of a line; none: the line is empty or, in a log, of something else.
  /// Errors: kInvalidArgument; the field names the member, the message the line and what is wrong
  /// with it.
  Result<std::optional<TraceRequest>> parse(std::string_view line);
  std::optional<TraceForm> form() const { return form_; }
  std::int64_t line_number() const { return line_number_; }

 private:
  std::optional<TraceForm> form_;
  std::int64_t line_number_ = 0;
  /// Which conversation first had a block; of Mooncake's form, which names no conversations.
  std::unordered_map<std::int64_t, std::uint64_t> conversations_;
};

/// Returns the request in Quire's own form, one JSON object without a line end.
std::string trace_json(const TraceRequest& request);

/// Mixes the bits of a number so that all of them depend on all: SplitMix64's last steps.
std::uint64_t mix(std::uint64_t bits);

/// Trace is a whole trace, in order of time; the first request comes at 0.
class Trace {
 public:
  struct Entry {
    double seconds = 0;
    std::uint64_t affinity = 0, first_context = 0;
    std::uint32_t num_contexts = 0, question_tokens = 1, answer_tokens = 1;
  };

  /// Sorts the requests by time. Of equal contexts of a request one counts, as in the service.
  explicit Trace(std::vector<TraceRequest> requests);

  const std::vector<Entry>& entries() const { return entries_; }
  const TraceContext* contexts(const Entry& e) const { return contexts_.data() + e.first_context; }
  /// Returns the time from the first request to the last, and one mean pause more: so long a period
  /// would repeat the trace evenly. It is above 0.
  double period() const { return period_; }
  std::uint64_t distinct_contexts() const { return distinct_contexts_; }
  std::uint64_t distinct_tokens() const { return distinct_tokens_; }
  std::uint64_t context_tokens() const { return context_tokens_; }  ///< of all requests together

 private:
  std::vector<Entry> entries_;
  std::vector<TraceContext> contexts_;
  double period_ = 1;
  std::uint64_t distinct_contexts_ = 0, distinct_tokens_ = 0, context_tokens_ = 0;
};

/// Reads a plain or gzip file. Errors: those of TraceParser, with the path; kNotFound, kIo,
/// kCorruption; kInvalidArgument (no request in it, or more than kMaxRequests).
Result<std::vector<TraceRequest>> read_trace(const std::string& path);
inline constexpr std::size_t kMaxRequests = 20'000'000;

}  // namespace quire::capacity
