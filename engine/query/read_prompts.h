/// What a draft made of the last prompts it read, for requests that ask for the same again: the
/// choices of one request, or its repetition.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "cachestore/key.h"

namespace quire {

/// A reading of one prompt: a function of the prompt's tokens and of how it is read alone.
struct ReadPrompt {
  std::vector<float> scores;         ///< [tokens of the target's prompt]
  std::vector<std::int32_t> answer;  ///< what the draft wrote behind it, of its own vocabulary
};

/// Keeps the few that were used last. Threads: the engine thread.
class ReadPrompts {
 public:
  /// Null: not known. Stays until the next add().
  const ReadPrompt* find(const Digest& key);
  void add(const Digest& key, ReadPrompt prompt);

 private:
  static constexpr std::size_t kMost = 8;
  std::list<std::pair<Digest, ReadPrompt>> prompts_;  ///< most recently used first
};

}  // namespace quire
