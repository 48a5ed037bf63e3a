/// RULER's 13 tasks at any length (Hsieh et al., "RULER: What's the Real Context Size of Your
/// Long-Context Language Models?", 2024).
///
/// The tasks, their needles, hops and counts follow the publication's configuration. Three things
/// differ. The hay of its "essay" tasks is the running text of a suite instead of one author's
/// essays. Words are adjective-noun pairs. Prompts have no worked example and no opening of the
/// answer, because a chat format adds its own opening there.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "fidelity/suite.h"

namespace quire {

/// Returns niah_single_1..3, niah_multikey_1..3, niah_multivalue, niah_multiquery, vt, cwe, fwe,
/// qa_1, qa_2.
const std::vector<std::string_view>& ruler_tasks();

struct RulerOptions {
  std::int64_t length_tokens = 4096;  ///< prompt and answer together
  std::int64_t window_tokens = 0;  ///< the model's window; longer tasks are skipped with a reason
  std::int64_t per_task = 20;      ///< questions per task
  std::uint64_t seed = 1;
};

/// Returns the tokens of the record's prompt in the model's own format.
using PromptTokens = std::function<Result<std::int64_t>(const SuiteRecord& record)>;

/// Makes the tasks from `source`: running text for hay, single-document questions for qa_1 and
/// questions over several documents for qa_2 (kinds whose supporting documents are one, or more).
/// Tasks that the source cannot supply are skipped with a reason. Errors: kInvalidArgument (length
/// below 256, no text), and those of `prompt_tokens`.
Result<Suite> make_ruler(const Suite& source, const RulerOptions& options,
                         const PromptTokens& prompt_tokens);

}  // namespace quire
