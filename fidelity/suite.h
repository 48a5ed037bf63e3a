/// Questions with their documents and known answers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"

namespace quire {

struct SuiteDocument {
  std::string id, title, text;
  friend bool operator==(const SuiteDocument&, const SuiteDocument&) = default;
};

/// How an answer is scored besides F1; the result is the row's `em`.
enum class ScoreRule : std::uint8_t {
  kExactMatch,
  kRulerAll,  ///< share of the references found in the answer
  kRulerAny,  ///< any reference found in the answer
};

/// SuiteSupport is a part of a document that the answer follows from, such as a sentence.
struct SuiteSupport {
  std::size_t document = 0;        ///< index into SuiteRecord::documents
  std::size_t begin = 0, end = 0;  ///< bytes of its text
  friend bool operator==(const SuiteSupport&, const SuiteSupport&) = default;
};

/// SuiteTurn is an earlier question and answer of the same conversation.
struct SuiteTurn {
  std::string question, answer;
  friend bool operator==(const SuiteTurn&, const SuiteTurn&) = default;
};

struct SuiteRecord {
  /// In prompt order; shared by questions over the same documents.
  std::shared_ptr<const std::vector<SuiteDocument>> documents;
  std::vector<SuiteTurn> turns;  ///< placed between the documents and the question, in order
  std::string question;
  /// Any of these is right. Empty: unknown, so only agreement and KL are measured.
  std::vector<std::string> answers;
  std::string kind;  ///< the task in the report's rows
  std::vector<std::string> supporting_ids;
  std::vector<SuiteSupport> support;  ///< ascending; empty: unknown
  ScoreRule rule = ScoreRule::kExactMatch;
  std::int32_t max_tokens = 0;  ///< limit of the answer; 0: the run's default
  bool first_line = false;  ///< only the answer's first line counts (LongBench's few-shot tasks)
  std::int64_t line = 0;    ///< its line in its file; 0: generated
};

/// SkippedTask is a task that cannot be run, and the reason.
struct SkippedTask {
  std::string task, reason;
};

struct Suite {
  std::string name;
  /// Precedes each question for models that follow instructions; may be empty.
  std::string instruction;
  std::vector<SuiteRecord> records;
  std::vector<SkippedTask> skipped;

  /// Returns a hash over every record's content and the instruction. Equal suites have equal
  /// hashes, regardless of their files.
  Digest hash() const;
};

/// Returns a hash over one record's content.
Digest record_hash(const SuiteRecord& record);

/// Returns the records that ask what no earlier one asks: other documents, turns or question. A
/// question that is asked again gives the same answers, which are no further evidence.
std::vector<std::size_t> distinct_records(const Suite& suite);

/// Returns at most `per_kind` of the distinct records of each kind, sampled by `seed`, in the order
/// of the suite; 0: all of them.
std::vector<std::size_t> select_records(const Suite& suite, std::int64_t per_kind,
                                        std::uint64_t seed);

}  // namespace quire
