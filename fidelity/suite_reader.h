/// Reads suites from files: the project's own jsonl, and the layouts of public question-answering
/// sets. A record's members tell its layout:
///
/// - own, with `documents`: `documents[]` of id, title, text, or "previous" for those of the line
///   before; `answers` (may be missing); earlier `turns[]` of question, answer; `support[]` of id
///   and a text of that document from which the answer follows
/// - HotpotQA, 2WikiMultihopQA, with `context` of pairs: one document per pair [title, sentences];
///   `answer`; kind `type`; `supporting_facts` name the sentences that support it
/// - MuSiQue, with `paragraphs`: one document per paragraph; `answer`, `answer_aliases`; kind:
/// hops;
///   sentences that hold the answer of a step of `question_decomposition` support it
/// - SQuAD, with `data`: the paragraph is the document; `answers[].text`
/// - LongBench, with `context` text and `input`: one document per "Passage n:"; `answers`; kind
///   `dataset`
/// - LongBench as whole prompts, with `prompt` and `answers` or `task`: documents as above, but
///   cut from the prompt; `answers`; kind `task`
/// - retrieved contexts (DPR), with `ctxs`: one document per context; `answers`
/// - chunks, with `chunks` and `query`: one document per chunk; no answers
/// - RULER, with `input` and `outputs`: the text before the question is the document; `outputs`,
///   scored as in RULER
///
/// Files are plain or gzip, with one record per line. A file that begins with '[' is one array of
/// records, one with "data" one SQuAD object.
#pragma once

#include <string>
#include <string_view>

#include "fidelity/line_source.h"
#include "fidelity/suite.h"

namespace quire {

struct SuiteLimits {
  std::size_t max_records = 1'000'000;
  std::size_t max_bytes = std::size_t{4} << 30;  ///< documents and questions together
  std::size_t max_documents = 4096;              ///< per record
};

/// Reads the whole file or nothing. Errors, all naming the file, its line and the fault:
/// kInvalidArgument (unknown layout, missing or wrong member, unfinished JSON, no record at all,
/// limits), kNotFound, kIo, kCorruption (gzip).
Result<Suite> read_suite(const std::string& path, const SuiteLimits& limits = {});
/// Reads from an open source; messages use `name` as the file's name.
Result<Suite> read_suite(LineSource& lines, const std::string& name,
                         const SuiteLimits& limits = {});

/// LongBench's sentence for multi-document questions. It precedes the question unless the model
/// does not follow instructions.
extern const std::string_view kAnswerInstruction;

}  // namespace quire
