#include "engine/query/read_prompts.h"

#include <algorithm>

namespace quire {

const ReadPrompt* ReadPrompts::find(const Digest& key) {
  const auto found = std::find_if(prompts_.begin(), prompts_.end(),
                                  [&](const auto& p) { return p.first == key; });
  if (found == prompts_.end()) return nullptr;
  prompts_.splice(prompts_.begin(), prompts_, found);
  return &prompts_.front().second;
}

void ReadPrompts::add(const Digest& key, ReadPrompt prompt) {
  prompts_.emplace_front(key, std::move(prompt));
  if (prompts_.size() > kMost) prompts_.pop_back();
}

}  // namespace quire
