/// Questions with known passages, from which 'quire model calibrate' learns a model's retrieval
/// heads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/chat/chat_template.h"
#include "fidelity/suite.h"

namespace quire {

/// Turns the suite's questions that name their support into examples, at most `most`, evenly spread
/// over the suite. Prompts of more than `longest` tokens are left out. Errors: kInvalidArgument (no
/// question of the suite names its support); those of PromptFormat.
Result<std::vector<HeadExample>> labelled_examples(const Suite& suite, const PromptFormat& format,
                                                   std::size_t most, std::int64_t longest);

/// Makes `count` examples from plain texts: a made-up sentence is hidden in one of ten paragraphs,
/// and the question asks for it. Equal texts give equal examples. Errors: kInvalidArgument (the
/// texts have fewer than ten paragraphs); those of PromptFormat.
Result<std::vector<HeadExample>> hidden_sentence_examples(std::span<const std::string> texts,
                                                          const PromptFormat& format,
                                                          std::size_t count, std::int64_t longest);

}  // namespace quire
