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

#include "engine/tokenizer/tokenizer.h"
#include "kernels/base/status.h"

namespace quire {

/// One turn. role: "system", "user" or "assistant".
struct ChatMessage {
  std::string role, content;
};

/// The families this build can render. Each is written out natively; there is no template engine.
enum class PromptFamily : unsigned char {
  kPlain,      ///< base models: documents, then "Question: ...", "Answer:"
  kQuire,      ///< tokenizer_config.json's "quire_prompt" (the embedded model)
  kLlama2,     ///< [INST] <<SYS>>
  kLlama3,     ///< <|start_header_id|>; also 3.1/3.2 with the date lines in the system turn
  kMistral,    ///< [INST] as text (v0.1, v0.2) or as a control token (v0.3)
  kChatMl,     ///< <|im_start|> (Qwen2, Qwen2.5, Yi, SmolLM2)
  kQwen3,      ///< ChatML with <think>
  kZephyr,     ///< <|user|> ... </s> (TinyLlama)
  kDeepSeekR1  ///< <｜User｜> (DeepSeek-R1-Distill)
};
std::string_view prompt_family_name(PromptFamily family);

struct PromptOptions {
  /// "auto" (from the model folder), or: plain, quire, llama2, llama3, llama3.1, mistral, mistral-v0.3, chatml, qwen2,
  /// qwen2.5, qwen3, zephyr, deepseek-r1.
  std::string format = "auto";
  /// Qwen3 only: false ends the prompt with an empty think block, so that the answer comes at once.
  bool enable_thinking = false;
};

/// One cached document as ids, and for each id the byte range of `text` it stands for. Ids of the header stand at {0, 0},
/// ids of the separator behind at {size, size}.
struct DocumentTokens {
  std::vector<std::int32_t> ids;
  std::vector<TokenSpan> spans;
};

/// A prompt over documents is prefix() + document()... + suffix(), joined as ids; no part depends on another, so each can
/// be prefilled and cached alone. chat() is a whole conversation without documents, as the model's own template renders it.
/// Users' and documents' text never becomes a control token. Immutable, any thread; shares the tokenizer.
class PromptFormat {
 public:
  /// `tokenizer` must not be null. Errors: kInvalidArgument naming the file or the option: unknown format name, a chat
  /// template of no known family (fix: set model.prompt_format), a control token the vocabulary lacks.
  static Result<PromptFormat> load(const std::filesystem::path& model_dir, std::shared_ptr<const Tokenizer> tokenizer,
                                   const PromptOptions& options = {});
  /// The same from file contents: tokenizer_config.json (may be empty) and chat_template.jinja (may be empty).
  static Result<PromptFormat> parse(std::string_view tokenizer_config, std::string_view chat_template_file,
                                    std::shared_ptr<const Tokenizer> tokenizer, const PromptOptions& options = {});

  PromptFormat(PromptFormat&&) noexcept;
  PromptFormat& operator=(PromptFormat&&) noexcept;
  PromptFormat(const PromptFormat&);
  PromptFormat& operator=(const PromptFormat&);
  ~PromptFormat();

  /// BOS, the system turn (the family's default where `system` is empty) and the opening of the user's turn.
  /// kInvalidArgument (field "system") if the family has no place for a system message.
  Result<std::vector<std::int32_t>> prefix(std::optional<std::string_view> system = std::nullopt) const;
  /// A document (or one chunk) with its header and separator. The same ids at every rank. An empty title shortens the
  /// header; line breaks in a title become spaces.
  Result<DocumentTokens> document(std::string_view title, std::string_view text) const;
  /// The question, the end of the user's turn and the opening of the assistant's.
  Result<std::vector<std::int32_t>> suffix(std::string_view question) const;
  /// A conversation after the documents: user first, then alternating, the last from the user. No system message here:
  /// it belongs to prefix(). kInvalidArgument (field "messages[i].role").
  Result<std::vector<std::int32_t>> suffix(std::span<const ChatMessage> messages) const;
  /// A whole conversation without documents. kInvalidArgument (field "messages", "messages[i].role").
  Result<std::vector<std::int32_t>> chat(std::span<const ChatMessage> messages, bool add_generation_prompt = true) const;

  /// Texts that end an answer and are not part of it (empty for most families).
  const std::vector<std::string>& stop_strings() const;
  /// Ids that end an answer: the tokenizer's eos_ids() and the family's end of turn, ascending.
  const std::vector<std::int32_t>& stop_ids() const;
  bool supports_system() const;
  PromptFamily family() const;
  /// SHA-256 over everything that changes the ids of prefix() and document().
  const std::array<std::uint8_t, 32>& digest() const;

 private:
  struct Impl;
  explicit PromptFormat(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace quire
