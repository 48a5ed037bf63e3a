/// RULER's 13 tasks at any length (Hsieh et al., "RULER: What's the Real Context Size of Your
/// Long-Context Language Models?", 2024).
///
/// The tasks, their needles, hops and counts follow the publication's configuration. Different: hay
/// of the tasks it calls "essay" is the running text of a suite instead of one author's essays;
/// words are adjective-noun pairs; no worked example and no opening of the answer stand in the
/// prompt, because a chat format puts its own opening there.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fidelity/suite.h"

namespace quire {

/// niah_single_1..3, niah_multikey_1..3, niah_multivalue, niah_multiquery, vt, cwe, fwe, qa_1,
/// qa_2.
const std::vector<std::string_view>& ruler_tasks();

struct RulerOptions {
  std::int64_t length_tokens = 4096;  ///< of prompt and answer together
  std::int64_t window_tokens = 0;     ///< of the model; longer tasks are skipped with a reason
  std::int64_t per_task = 20;         ///< questions of each task
  std::uint64_t seed = 1;
};

/// Tokens the record's prompt takes in the model's own format.
using PromptTokens = std::function<Result<std::int64_t>(const SuiteRecord& record)>;

/// `source`: running text for hay, single-document questions for qa_1 and questions over several
/// documents for qa_2 (kinds whose supporting documents are one, or more). What the source cannot
/// give is skipped with a reason. Errors: kInvalidArgument (length below 256, no text), and those
/// of `prompt_tokens`.
Result<Suite> make_ruler(const Suite& source, const RulerOptions& options,
                         const PromptTokens& prompt_tokens);

}  // namespace quire
