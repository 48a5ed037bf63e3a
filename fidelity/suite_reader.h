/// Reads suites from files: the project's own jsonl, and the layouts of public question-answering
/// sets.
///
/// | layout | told by | documents | answers |
/// | --- | --- | --- | --- |
/// | own | `documents` | `documents[]` of id, title, text; "previous": those of the line before |
/// `answers` (may be missing); `turns[]` of question, answer: asked before | | HotpotQA,
/// 2WikiMultihopQA | `context` of pairs | one a pair [title, sentences] | `answer`; kind `type` |
/// | MuSiQue | `paragraphs` | one a paragraph | `answer`, `answer_aliases`; kind: hops |
/// | SQuAD | `data` | the paragraph | `answers[].text` |
/// | LongBench | `context` text with `input` | one a "Passage n:" | `answers`; kind `dataset` |
/// | LongBench as whole prompts | `prompt` with `answers` or `task` | as above, cut from the prompt
/// | `answers`; kind `task` | | retrieved contexts (DPR) | `ctxs` | one a context | `answers` | |
/// chunks | `chunks` with `query` | one a chunk | none | | RULER | `input` with `outputs` | the
/// text before the question | `outputs`, scored as RULER does |
///
/// Plain or gzip. One record a line; a file that begins with '[' is one array of records, one with
/// "data" one SQuAD object.
#pragma once

#include <string>
#include <string_view>

#include "fidelity/line_source.h"
#include "fidelity/suite.h"

namespace quire {

struct SuiteLimits {
  std::size_t max_records = 1'000'000;
  std::size_t max_bytes = std::size_t{4} << 30;  ///< of documents and questions together
  std::size_t max_documents = 4096;              ///< of one record
};

/// The whole file or nothing. Errors, all naming the file, its line and what is wrong there:
/// kInvalidArgument (unknown layout, missing or wrong member, unfinished JSON, no record at all,
/// limits), kNotFound, kIo, kCorruption (gzip).
Result<Suite> read_suite(const std::string& path, const SuiteLimits& limits = {});
/// The same from an open source; `name` stands for the file in messages.
Result<Suite> read_suite(LineSource& lines, const std::string& name,
                         const SuiteLimits& limits = {});

/// LongBench's sentence for multi-document questions: put before the question unless the model
/// knows no instructions.
extern const std::string_view kAnswerInstruction;

}  // namespace quire
