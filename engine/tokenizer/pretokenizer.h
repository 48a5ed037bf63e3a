/// Cuts a text into the words byte-pair merges may not cross.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::tokenizer_internal {

/// Pre-tokeniser patterns of the known families, as they publish them.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

/// A list of patterns applied one after another: each match, and each range between matches,
/// becomes a piece that the next pattern sees alone. An empty match cuts where it stands. No byte
/// is ever lost. Immutable, any thread.
class Pretokenizer {
 public:
  /// Errors: kInvalidArgument with the pattern and the position of the mistake, also for a pattern
  /// of more than 64 KiB, or of more than 250 parentheses within each other.
  static Result<Pretokenizer> compile(const std::vector<std::string>& patterns);

  Pretokenizer();  ///< no patterns: the whole text is one word
  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  /// Appends the words of `text` (valid UTF-8), which they point into. The choices that patterns
  /// take back are counted. Where they need more than is allowed, in proportion to the text, the
  /// rest of what the pattern looks at stays one word.
  void split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Pattern;
  std::vector<Pattern> patterns_;
};

}  // namespace quire::tokenizer_internal
