/// A model's own chat template at work: conversations as marked text, and where documents go.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/jinja_template.h"
#include "engine/chat/tools.h"
#include "engine/jinja/text.h"

namespace quire::tokenizer_internal {

/// What a template sees beside the conversation.
struct TemplateContext {
  /// bos_token, eos_token and their like, by name. Names not given are undefined.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::vector<std::string> additional_special_tokens;
  bool enable_thinking = false;
};

/// One turn with marked content.
struct TemplateTurn {
  std::string role;
  jinja::Text content;
  const ChatMessage* message = nullptr;  ///< its tool calls and names; null: none
};

/// Renders conversations. What the template wrote has jinja::kTemplateMark, what a user, a tool or
/// an earlier answer wrote has not: only the former may become control tokens.
///
/// Immutable, any thread.
class TemplatePrompt {
 public:
  /// A place in the middle of the user's text, for cut().
  struct Cut {
    jinja::Text before, after;
  };

  /// Tries the template on small conversations. Errors: kInvalidArgument where it cannot be read
  /// or shows no user's text; field() is empty.
  static Result<TemplatePrompt> make(std::string_view source, TemplateContext context);

  /// A whole conversation. `tools` is a JSON array, or empty. With `continue_last` it ends with the
  /// content of the last message. Errors: as PromptFormat::chat().
  Result<jinja::Text> render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                             std::string_view tools = {}, bool continue_last = false) const;

  /// The conversation cut in two within its first user's turn, behind `before_cut` and before the
  /// first message's content. `system` comes first if it is given.
  /// Errors: as render(), and kInvalidArgument where that place cannot be told.
  Result<Cut> cut(std::optional<std::string_view> system, std::string_view before_cut,
                  std::string_view after_cut, std::span<const ChatMessage> messages,
                  std::string_view tools = {}, bool continue_last = false) const;

  /// How the template shows an assistant's call of a tool; none: not at all, or in a form that
  /// ToolParser does not know.
  std::optional<ToolStyle> tool_style() const { return tool_style_; }
  bool shows_system() const { return shows_system_; }
  bool shows_tools() const { return shows_tools_; }
  /// What stands behind an answer that is over, e.g. "<|im_end|>\n"; empty where nothing does.
  const std::string& after_answer() const { return after_answer_; }

 private:
  TemplatePrompt(JinjaTemplate parsed, TemplateContext context)
      : template_(std::move(parsed)), context_(std::move(context)) {}

  Result<jinja::Text> render_turns(std::span<const TemplateTurn> turns, bool add_generation_prompt,
                                   std::string_view tools) const;
  Status probe();
  /// Whether the template fails, or writes "None", unless messages of calls alone have a text.
  bool needs_content(std::span<const TemplateTurn> turns, std::string_view tools);

  JinjaTemplate template_;
  TemplateContext context_;
  bool parts_ = false;          ///< contents are given as [{"type": "text", "text": ...}]
  bool empty_content_ = false;  ///< a message of calls alone has an empty text instead of none
  bool empty_tools_ = false;    ///< "no tools" is an empty list instead of none
  bool shows_system_ = false, shows_tools_ = false;
  std::optional<ToolStyle> tool_style_;
  std::string after_answer_;
};

}  // namespace quire::tokenizer_internal
