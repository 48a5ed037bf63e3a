/// This file counts in how many ways the texts of a grammar go on. Internal to sample/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/index.h"
#include "engine/sample/grammar.h"

namespace quire {

/// Counts, for each part of a grammar, the bytes, literals and automata that its texts may begin
/// with. A matcher drops those above GrammarMatcher::kMaxWays, so not every text of a part with
/// more could be written. A part that contains itself counts once. Immutable; threads: any.
class FirstWays {
 public:
  explicit FirstWays(const Grammar& grammar);

  std::int64_t of(Grammar::Part part) const { return starts_[at(part)].ways; }
  /// Returns the most ways there are at the beginning of a part, or behind one in a sequence.
  std::int64_t most() const { return most_; }

 private:
  struct Start {
    std::int64_t ways = 0;
    bool empty = false;  ///< a text may have no bytes
  };
  Start start(const Grammar::Node& node);

  std::vector<Start> starts_;  ///< by part
  std::int64_t most_ = 0;
};

}  // namespace quire
