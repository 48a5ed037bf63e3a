/// A chat template of a model, ready to render conversations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/jinja/text.h"
#include "engine/jinja/value.h"

namespace quire::tokenizer_internal {

/// How much one render may cost. Templates are files from the network: none may loop for ever, fill
/// the memory or exhaust the stack. Some bounds grow with the input, which may be a long chat.
struct JinjaLimits {
  std::size_t template_bytes = std::size_t{1} << 20;
  std::uint64_t steps = 2'000'000;  ///< and 16 for each byte of input
  std::uint64_t text_bytes = std::uint64_t{64}
                             << 20;  ///< made on the way; and 64 for each byte of input
  std::uint64_t output_bytes = std::uint64_t{4} << 20;  ///< and 8 for each byte of input
  int depth = 300;  ///< of statements, expressions and macros within each other
};

/// Jinja as transformers' apply_chat_template sets it up: trim_blocks, lstrip_blocks, loop
/// controls, {% generation %}, tojson with transformers' defaults, raise_exception, strftime_now,
/// and no access to anything outside the template (no include, no import, no files, no methods
/// that change a value). strftime_now() always says 26 July 2024: today's date would make every
/// cached prompt of yesterday a miss.
///
/// Not supported, and refused by parse(): {% include %}, {% import %}, {% extends %}, {% do %},
/// recursive loops, and filters that no published template uses.
///
/// Immutable, any thread.
class JinjaTemplate {
 public:
  using Inputs = std::vector<std::pair<std::string, jinja::Value>>;

  /// Errors: kInvalidArgument with the line and what is wrong there; field() is empty.
  static Result<JinjaTemplate> parse(std::string_view source, const JinjaLimits& limits = {});

  /// The text, each byte with the mark of the input it came from; what the template itself wrote
  /// has kTemplateMark. `input_bytes` is about how large the inputs are.
  /// Errors: kInvalidArgument (the template refuses the inputs, or cannot be evaluated),
  /// kResourceExhausted (a limit was met).
  Result<jinja::Text> render(Inputs inputs, std::size_t input_bytes) const;

 private:
  struct Parsed;
  explicit JinjaTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

/// JSON as a value of templates, every text in it with `mark`.
/// Errors: kInvalidArgument (field) where it is not JSON, or nests deeper than 32.
Result<jinja::Value> jinja_value_of_json(std::string_view json, jinja::Mark mark,
                                         const std::string& field);

}  // namespace quire::tokenizer_internal
