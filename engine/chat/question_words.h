/// This file tells which of a prompt's last tokens are the question's own words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"
#include "engine/chat/chat_template.h"

namespace quire {

/// Returns the range [begin, end) of `ids`, which are format.suffix(messages), that holds the last
/// message without its first `skipped` bytes, such as an instruction. It is found by rendering
/// another question in the same place, so it holds for any template; a token that joins text and
/// template may be on either side. An empty range: there are no words. Errors: as
/// PromptFormat::suffix().
Result<std::pair<std::size_t, std::size_t>> question_words(const PromptFormat& format,
                                                           std::span<const ChatMessage> messages,
                                                           std::size_t skipped,
                                                           std::span<const std::int32_t> ids);

}  // namespace quire
