#include "engine/chat/question_words.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/index.h"

namespace quire {

Result<std::pair<std::size_t, std::size_t>> question_words(const PromptFormat& format,
                                                           std::span<const ChatMessage> messages,
                                                           std::size_t skipped,
                                                           std::span<const std::int32_t> ids) {
  std::pair<std::size_t, std::size_t> none{0, 0};
  if (messages.empty() || skipped > messages.back().content.size()) return none;
  std::vector<ChatMessage> other(messages.begin(), messages.end());
  std::string& content = other.back().content;
  const std::string question = content.substr(skipped);
  // The other question begins and ends with another letter, so that no equal tokens are shared.
  const auto free = [&question](char c) {
    return !question.starts_with(c) && !question.ends_with(c);
  };
  content.resize(skipped);
  content += free('z') ? 'z' : free('0') ? '0' : 'k';
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> probe, format.suffix(other));
  const auto begin = to_size(std::ranges::mismatch(ids, probe).in1 - ids.begin());
  const std::size_t most = std::min(ids.size(), probe.size()) - std::min(begin, probe.size());
  std::size_t behind = 0;
  while (behind < most && ids[ids.size() - 1 - behind] == probe[probe.size() - 1 - behind])
    ++behind;
  return std::pair(begin, ids.size() - behind);
}

}  // namespace quire
