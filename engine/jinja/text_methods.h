/// The methods of texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/jinja/value.h"

namespace quire::jinja {

enum class Case : unsigned char {
  kUpper,
  kLower,
  kTitle,      ///< str.title(): a letter behind anything but a letter
  kWords,      ///< the filter title: what follows white space or an opening bracket
  kCapitalize  ///< the first character alone
};
/// Character by character; the few that change into several (ss) stay as they are.
Text changed_case(const Text& text, Case to);

/// As str.splitlines().
std::vector<Text> split_lines(const Text& text, bool keep_ends);
/// As str.replace(); `most` negative: all. The result is counted.
Text replaced(Interpreter& run, const Text& text, const Text& from, const Text& to,
              std::int64_t most);
/// A whole number written to the base (2 to 36), with its mark ("0x") or without.
std::optional<std::int64_t> whole_number_of(std::string_view text, int base);
/// A number written in the text, or `fallback`.
Value number_of(std::string_view text, bool integer, const Value& fallback);

bool is_text_method(std::string_view name);
Value call_text_method(Interpreter& run, const Text& text, std::string_view name, Arguments& args);

}  // namespace quire::jinja
