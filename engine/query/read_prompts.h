/// This file caches a draft's readings of recent prompts, for repeated requests and for several
/// choices of one request.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "cachestore/format/key.h"

namespace quire {

/// A reading of one prompt; it depends only on the prompt's tokens and on how it is read.
struct ReadPrompt {
  std::vector<float> scores;         ///< [tokens of the target's prompt]
  std::vector<std::int32_t> answer;  ///< the draft's answer, in its own vocabulary
};

/// Keeps the few most recently used readings. Threads: the engine thread.
class ReadPrompts {
 public:
  /// Returns the reading with this key, valid until the next add(); null: unknown.
  const ReadPrompt* find(const Digest& key);
  void add(const Digest& key, ReadPrompt prompt);

 private:
  static constexpr std::size_t kMost = 8;
  std::list<std::pair<Digest, ReadPrompt>> prompts_;  ///< most recently used first
};

}  // namespace quire
