// Runs chat templates of any bytes over a small conversation. The result is a text with a mark for
// each byte, or an error with a message. It never crashes or exceeds its bounds.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/chat/jinja_template.h"
#include "engine/chat/template_prompt.h"

namespace {

using quire::tokenizer_internal::JinjaTemplate;

/// Removes the bytes up to the next 0xFF from `rest` and returns them.
std::string_view take_part(std::string_view& rest) {
  const std::size_t end = std::min(rest.find('\xFF'), rest.size());
  const std::string_view part = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return part;
}

void check(const quire::Status& status) {
  if (status.message().empty()) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const std::string source(take_part(rest)), content(take_part(rest)), tools(take_part(rest));
  const auto parsed = JinjaTemplate::parse(
      source, {.steps = 50'000, .text_bytes = 1 << 20, .output_bytes = 1 << 18});
  if (!parsed.ok()) {
    check(parsed.status());
    return 0;
  }
  const auto messages = quire::tokenizer_internal::jinja_value_of_json(
      R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " a "}, {"role": )"
      R"("user", "content": "b\n"}])",
      1, "");
  auto given = quire::tokenizer_internal::jinja_value_of_json(tools, 1, "tools");
  const auto text = parsed->render(
      {{"messages", *messages},
       {"tools", given.ok() ? *given : quire::jinja::Value(quire::jinja::None{})},
       {"content", quire::jinja::Value::text(content, 1)},
       {"add_generation_prompt", true},
       {"bos_token", quire::jinja::Value::text("<s>")},
       {"eos_token", quire::jinja::Value::text("</s>")}},
      0);
  if (!text.ok()) {
    check(text.status());
    return 0;
  }
  if (!text->marks.empty() && text->marks.size() != text->bytes.size()) __builtin_trap();
  return 0;
}
