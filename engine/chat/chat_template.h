/// How a model wants its prompt: turns, documents and question as token ids.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat/tools.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

namespace tokenizer_internal {
class TemplatePrompt;
}

/// One turn. role: "system", "user" or "assistant"; where the model's own template renders it also
/// "developer" and "tool".
struct ChatMessage {
  std::string role, content;
  /// Of an assistant: a JSON array as OpenAI's API has it; empty: none
  std::string tool_calls = {};
  std::string name = {}, tool_call_id = {};  ///< of a tool's result; empty: none
  /// Thoughts of an earlier answer, for templates that show them
  std::string reasoning_content = {};
};

/// The families whose markup is written out natively, and kTemplate for every other chat template.
enum class PromptFamily : unsigned char {
  kPlain,       ///< base models: documents, then "Question: ...", "Answer:"
  kQuire,       ///< tokenizer_config.json's "quire_prompt" (the embedded model)
  kLlama2,      ///< [INST] <<SYS>>
  kLlama3,      ///< <|start_header_id|>; also 3.1/3.2 with the date lines in the system turn
  kMistral,     ///< [INST] as text (v0.1, v0.2) or as a control token (v0.3)
  kChatMl,      ///< <|im_start|> (Qwen2, Qwen2.5, Yi, SmolLM2)
  kQwen3,       ///< ChatML with <think>
  kZephyr,      ///< <|user|> ... </s> (TinyLlama)
  kDeepSeekR1,  ///< <｜User｜> (DeepSeek-R1-Distill)
  kTemplate     ///< the model's own Jinja template, rendered
};
std::string_view prompt_family_name(PromptFamily family);

/// PromptWording replaces the words around documents. "auto" keeps those of the family. They are
/// text: no spelling of a control token is allowed.
struct PromptWording {
  std::string intro = "auto";  ///< before the first document
  /// A document: {text} once, and before it at most one {title}. Without a title, the blanks before
  /// {title} are dropped as well.
  std::string document = "auto";
  std::string question = "auto";  ///< before the question
  friend bool operator==(const PromptWording&, const PromptWording&) = default;
};

struct PromptOptions {
  /// "auto": the model folder's own chat template decides. A native family stands in for it only
  /// where both give the same ids for a set of probe conversations; else the template itself is
  /// rendered. "template": always rendered. Or: plain, quire, llama2, llama3, llama3.1, mistral,
  /// mistral-v0.3, chatml, qwen2, qwen2.5, qwen3, zephyr, deepseek-r1.
  std::string format = "auto";
  /// The variable of this name in templates. Qwen3: false ends the prompt with an empty think
  /// block, so that the answer comes at once.
  bool enable_thinking = false;
  PromptWording wording;
};

/// One cached document as ids, and for each id the byte range of `text` it stands for. Ids of the
/// header stand at {0, 0}, ids of the separator behind at {size, size}.
struct DocumentTokens {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> spans;
};

/// The tokens before the documents and behind them.
struct AroundDocuments {
  std::vector<std::int32_t> before, after;
};

/// A prompt over documents is prefix() + document()... + suffix(), joined as ids; no part depends
/// on another, so each can be prefilled and cached alone. chat() is a whole conversation without
/// documents, as the model's own template renders it. Users' and documents' text never becomes a
/// control token.
///
/// With a template (PromptFamily::kTemplate) the documents stand within the user's turn, between
/// the model's own opening of it and the question. Where a template shows the user's text not at
/// all, several times or changed, that place cannot be found: parse() then logs a warning that
/// names model.prompt_format, documents get plain markup without turns, and chat() still is the
/// template's.
///
/// Immutable, any thread; shares the tokenizer.
class PromptFormat {
 public:
  /// `tokenizer` must not be null. Errors: kInvalidArgument naming the file or the option: unknown
  /// format name, a chat template that cannot be read or shows no user's text (fix: set
  /// model.prompt_format), a control token the vocabulary lacks.
  static Result<PromptFormat> load(const std::filesystem::path& model_dir,
                                   std::shared_ptr<const Tokenizer> tokenizer,
                                   const PromptOptions& options = {});
  /// The same from file contents: tokenizer_config.json (may be empty) and chat_template.jinja (may
  /// be empty).
  static Result<PromptFormat> parse(std::string_view tokenizer_config,
                                    std::string_view chat_template_file,
                                    std::shared_ptr<const Tokenizer> tokenizer,
                                    const PromptOptions& options = {});

  PromptFormat(PromptFormat&&) noexcept;
  PromptFormat& operator=(PromptFormat&&) noexcept;
  PromptFormat(const PromptFormat&);
  PromptFormat& operator=(const PromptFormat&);
  ~PromptFormat();

  /// BOS, the system turn (the family's default where `system` is empty) and the opening of the
  /// user's turn. kInvalidArgument (field "system") if the family has no place for a system
  /// message.
  Result<std::vector<std::int32_t>> prefix(
      std::optional<std::string_view> system = std::nullopt) const;
  /// A document (or one chunk) with its header and separator. The same ids at every rank. An empty
  /// title shortens the header; line breaks in a title become spaces.
  Result<DocumentTokens> document(std::string_view title, std::string_view text) const;
  /// The question, the end of the user's turn and the opening of the assistant's.
  Result<std::vector<std::int32_t>> suffix(std::string_view question) const;
  /// A conversation after the documents: user first, then alternating, the last from the user. No
  /// system message here: it belongs to prefix(). With `continue_last` the last is the assistant's
  /// and stays open: the answer goes on where its content ends. kInvalidArgument (field
  /// "messages[i].role").
  Result<std::vector<std::int32_t>> suffix(std::span<const ChatMessage> messages,
                                           bool continue_last = false) const;
  /// prefix() and suffix() of a conversation with tools, tool calls or tool results, for which
  /// renders_tools(true) holds. Templates may describe tools before the documents or behind them.
  /// Errors: as chat().
  Result<AroundDocuments> around_documents(std::optional<std::string_view> system,
                                           std::span<const ChatMessage> messages,
                                           std::string_view tools,
                                           bool continue_last = false) const;
  /// A whole conversation without documents. `tools`: a JSON array of function descriptions as
  /// OpenAI's API has it, given to the model's template; empty: none. Tools, tool calls and tool
  /// results need a chat template. With `continue_last` the last message stays open: the answer
  /// goes on where its content ends. kInvalidArgument (field "messages", "messages[i].role",
  /// "messages[i].tool_calls", "tools"), also with the template's own words where it refuses the
  /// conversation; kResourceExhausted where the template takes too much to render.
  Result<std::vector<std::int32_t>> chat(std::span<const ChatMessage> messages,
                                         bool add_generation_prompt = true,
                                         std::string_view tools = {},
                                         bool continue_last = false) const;

  /// Texts that end an answer and are not part of it (empty for most families).
  const std::vector<std::string>& stop_strings() const;
  /// Ids that end an answer: the tokenizer's eos_ids() and the family's end of turn, ascending.
  const std::vector<std::int32_t>& stop_ids() const;
  bool supports_system() const;
  /// Whether chat() takes tools: there is a chat template, and it shows them.
  bool supports_tools() const;
  /// Whether the chat template shows tools and writes calls in a form that ToolParser knows, and,
  /// with documents, leaves them a place. Else tools_in_words() (tool_wording.h) describes them.
  bool renders_tools(bool with_documents) const;
  /// The form in which this model writes calls; kHermes where nothing is known of it.
  ToolStyle tool_style() const;
  PromptFamily family() const;
  /// Returns the words around documents that are in use. Markup of turns is not among them.
  PromptWording wording() const;
  /// Returns this format with other words; "auto" keeps those of this one. Errors:
  /// kInvalidArgument with field "prompt.intro", "prompt.document" or "prompt.question".
  Result<PromptFormat> with(const PromptWording& wording) const;
  /// SHA-256 over everything that changes the ids of prefix() and document().
  const std::array<std::uint8_t, 32>& digest() const;

 private:
  struct Impl;
  explicit PromptFormat(std::shared_ptr<const Impl> impl);
  /// Whether a native family and the template give the same ids for every probe conversation.
  static bool same_prompts(const PromptFormat& native,
                           const tokenizer_internal::TemplatePrompt& own);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire
