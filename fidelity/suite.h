/// Questions with their documents and known answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/key.h"

namespace quire {

struct SuiteDocument {
  std::string id, title, text;
  friend bool operator==(const SuiteDocument&, const SuiteDocument&) = default;
};

/// How an answer is scored besides F1. The result is the row's `em`.
enum class ScoreRule : std::uint8_t {
  kExactMatch,
  kRulerAll,  ///< share of the references found in the answer
  kRulerAny,  ///< any reference found in the answer
};

/// What was asked and answered before, in the same conversation.
struct SuiteTurn {
  std::string question, answer;
  friend bool operator==(const SuiteTurn&, const SuiteTurn&) = default;
};

struct SuiteRecord {
  /// Prompt order; shared by questions over the same documents
  std::shared_ptr<const std::vector<SuiteDocument>> documents;
  std::vector<SuiteTurn> turns;  ///< between the documents and the question; first one first
  std::string question;
  /// Any of them is right; empty: not known, only agreement and KL are measured
  std::vector<std::string> answers;
  std::string kind;  ///< the task of the report's rows
  std::vector<std::string> supporting_ids;
  ScoreRule rule = ScoreRule::kExactMatch;
  std::int32_t max_tokens = 0;  ///< of the answer; 0: the run's default
  bool first_line = false;  ///< only the answer's first line counts (LongBench's few-shot tasks)
  std::int64_t line = 0;    ///< where it stood in its file; 0: made here
};

/// A task that cannot be asked, and why.
struct SkippedTask {
  std::string task, reason;
};

struct Suite {
  std::string name;
  /// Put before each question for models that follow instructions; may be empty
  std::string instruction;
  std::vector<SuiteRecord> records;
  std::vector<SkippedTask> skipped;

  /// Over every record's content and the instruction: equal suites have equal hashes, whatever file
  /// they came from.
  Digest hash() const;
};

/// Over one record's content.
Digest record_hash(const SuiteRecord& record);

/// At most `per_kind` records of each kind, drawn by `seed`, in the order of the suite; 0: all of
/// them.
std::vector<std::size_t> select_records(const Suite& suite, std::int64_t per_kind,
                                        std::uint64_t seed);

}  // namespace quire
