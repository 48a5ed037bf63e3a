/// This file has what readers of regular expressions and of text grammars have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/sample/automata/automaton.h"

namespace quire {

/// The text of a pattern and a place in it. A reader derives from it and says where errors are.
class PatternText {
 protected:
  static constexpr int kMaxDepth = 100;  ///< of groups
  static constexpr std::int32_t kMaxCount = 1 << 12;
  /// How often something is repeated.
  struct Times {
    std::int32_t min = 0, max = Automaton::kUnbounded;
  };

  /// `text` must outlive this object.
  explicit PatternText(std::string_view text) : text_(text) {}
  PatternText(const PatternText&) = delete;
  PatternText& operator=(const PatternText&) = delete;
  ~PatternText() = default;

  /// Returns kInvalidArgument with the place.
  virtual Status wrong(const std::string& what) const = 0;

  bool more() const { return at_ < text_.size(); }
  /// Returns the next byte, which must be there.
  char peek() const { return text_[at_]; }
  /// Moves behind `what`. False: something else is next.
  bool take(std::string_view what);
  /// Reads `*`, `+`, `?` or counts in braces; empty: none of them is next. Errors: wrong().
  Result<std::optional<Times>> times();
  /// Reads the number of a character. Errors: wrong(), also for numbers that no character has.
  Result<std::uint32_t> hex(std::size_t digits);

  const std::string_view text_;
  std::size_t at_ = 0;

 private:
  Result<std::int32_t> count();
};

}  // namespace quire
