/// The tree of a regular expression or of a rule of a text grammar, and the parts it becomes.
/// Internal to sample/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/sample/automata/character_bytes.h"
#include "engine/sample/grammar.h"

namespace quire {

/// A set of code points as ascending ranges that do not touch, both ends included.
class CodePoints {
 public:
  static constexpr std::uint32_t kLast = 0x10ffff;

  void add(std::uint32_t first, std::uint32_t last);
  void add(const CodePoints& other);
  /// Returns all other code points, without surrogates.
  CodePoints inverted() const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<std::pair<std::uint32_t, std::uint32_t>>& ranges() const { return ranges_; }

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges_;
};

/// Reads the character at `at` and moves behind it; a byte that is no character is U+FFFD.
std::uint32_t next_code_point(std::string_view text, std::size_t& at);

/// A node of the tree. Nodes belong to their parents.
struct PatternNode {
  enum class Kind : std::uint8_t { kSet, kSequence, kChoice, kRepeat, kRule };
  Kind kind = Kind::kSequence;
  CodePoints set;
  std::vector<PatternNode> items;
  std::int32_t min = 0, max = 0;  ///< kRepeat
  std::string rule;               ///< kRule: its name
};
/// Returns the node of one character of a set.
PatternNode set_node(CodePoints set);
/// Returns the node of an item that is repeated.
PatternNode repeat_node(PatternNode item, std::int32_t min, std::int32_t max);
using PatternRules = std::map<std::string, PatternNode, std::less<>>;

/// Turns trees into parts of a grammar, whose rules these are: no repeated part matches the empty
/// text, and no part contains itself before its first byte.
class PatternParts {
 public:
  /// Everything must outlive this object. `json_string`: as RegexUse has it.
  PatternParts(GrammarBuilder& builder, const PatternRules& rules, bool json_string)
      : b_(builder), rules_(rules), json_string_(json_string) {}

  /// Errors: kUnimplemented (field: the rule) for a rule that contains itself before its first
  /// character, kInvalidArgument for a rule that is not there or a tree that is too large.
  Result<Grammar::Part> part(const PatternNode& node);
  /// Returns the part of one character of the set.
  Grammar::Part character(const CodePoints& set);

 private:
  using Part = Grammar::Part;
  Status check_rules();
  Status check_first(const PatternNode& node, std::set<std::string, std::less<>>& open,
                     std::set<std::string, std::less<>>& done, int depth) const;
  bool may_be_empty(const PatternNode& node) const;
  /// Appends the one text of the node. False: it has several, or rules.
  bool spell(const PatternNode& node, std::string& out) const;
  /// Returns the texts of a choice among texts; nothing: it is among others, too.
  std::optional<std::vector<std::string>> texts_of(const PatternNode& choice) const;
  Result<Part> any(const PatternNode& node, int depth);
  /// Builds the texts of the node but the empty one; a choice of nothing if there are none.
  Result<Part> not_empty(const PatternNode& node, int depth);
  Result<Part> rule(const std::string& name, bool may_be_empty, int depth);
  /// Returns the part of what follows the first `place` bytes of the pieces, in which they are
  /// alike: which bytes may stand at each place. They are ascending, so those that go on alike
  /// follow each other and share a part.
  Part bytes_from(std::span<const BytePiece> pieces, std::size_t place);

  GrammarBuilder& b_;
  const PatternRules& rules_;
  const bool json_string_;
  bool checked_ = false;
  std::map<std::string, bool, std::less<>> empty_rules_;
  std::map<std::pair<std::string, bool>, Part> made_;
  std::map<std::vector<std::pair<std::uint32_t, std::uint32_t>>, Part> sets_;
};

}  // namespace quire
