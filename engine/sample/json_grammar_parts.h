/// This file builds the parts of JSON grammars. Internal to sample/.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/sample/grammar.h"

namespace boost::json {
class value;
}  // namespace boost::json

namespace quire {

/// Writes a value in the only spelling that an answer may have; numbers are as short as possible.
std::string json_spelling(const boost::json::value& value);

/// Builds each part once; the builder must outlive it.
class JsonParts {
 public:
  using Part = Grammar::Part;
  explicit JsonParts(GrammarBuilder& builder) : b_(builder) {}

  /// Builds strings of `min` to `max` characters, with quotes.
  Part string(std::int32_t min = 0, std::int32_t max = Grammar::kUnbounded);
  Part integer();
  Part number();
  Part boolean();
  Part null() { return b_.literal("null"); }
  /// Builds any value of at most `depth` levels of arrays and objects.
  Part any(int depth);
  Part array(Part item, std::int32_t min = 0, std::int32_t max = Grammar::kUnbounded);
  /// Builds arrays of `min` to `max` items: first those of `first` in order, then items of `rest`
  /// (none: no further items).
  Part tuple(const std::vector<Part>& first, std::optional<Part> rest, std::int32_t min,
             std::int32_t max);
  /// Builds objects with any number of members of any names, each with such a value.
  Part map(Part value);

  struct Member {
    std::string name;
    Part value;
    bool required;
  };
  /// Builds objects of these members in this order; those not required may be missing.
  Part object(const std::vector<Member>& members);

 private:
  Part comma() {
    return once(comma_, [this] { return b_.sequence({b_.literal(","), space()}); });
  }
  Part colon() {
    return once(colon_, [this] { return b_.sequence({b_.literal(":"), space()}); });
  }
  Part space() {
    return once(space_, [this] { return b_.optional(b_.literal(" ")); });
  }
  Part character();
  Part make_character();
  Part make_number();
  template <class Make>
  Part once(std::optional<Part>& part, Make make) {
    if (!part) part = make();
    return *part;
  }

  GrammarBuilder& b_;
  std::optional<Part> comma_, colon_, space_, character_, string_, integer_, number_, boolean_;
  std::vector<std::optional<Part>> any_;  ///< by depth
};

}  // namespace quire
