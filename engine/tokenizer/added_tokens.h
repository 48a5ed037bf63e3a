/// Tokens outside the merge rules, found by their spelling: control tokens, and plain additions
/// such as runs of spaces.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire::tokenizer_internal {

struct AddedToken {
  std::int32_t id = -1;
  std::string text;
  bool special = false;  ///< said to be special by the file
  bool lstrip = false, rstrip = false, single_word = false;

  /// A control token is parsed only under Special::kParse: whatever the file calls special, and
  /// everything spelled like one (<think>, [INST]), because text from outside must not be able to
  /// say it.
  bool control() const;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  struct Match {
    std::size_t begin, end;  ///< with the white space the token takes from its neighbours
    std::int32_t id;
  };
  /// The leftmost, then longest token in text[from, ...).
  std::optional<Match> find(std::string_view text, std::size_t from, bool parse_control) const;
  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  std::vector<AddedToken> tokens_;  ///< longest first
  /// All tokens, by first byte, longest first
  std::array<std::vector<std::uint32_t>, 256> by_lead_;
  std::array<std::vector<std::uint32_t>, 256> open_by_lead_;  ///< those that are no control tokens
  bool any_open_ = false;
};

}  // namespace quire::tokenizer_internal
