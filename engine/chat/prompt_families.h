/// The markup of every known prompt family, as data.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"

namespace quire::tokenizer_internal {

/// Where a system message goes.
enum class SystemPlace : unsigned char { kOwnTurn, kFirstUserTurn, kLastUserTurn, kNowhere };

/// What the assistant's earlier answers lose, or get, when they are shown again.
enum class Thinking : unsigned char { kKeep, kDropThoughts, kQwen3 };

/// Markup of one family. kBos (between turns) and kEos stand for those tokens; every spelling in
/// `controls` stands for its token; all else is text. Contents go between *_open and *_close.
struct PromptSyntax {
  static constexpr char kBos = '\x01';
  static constexpr char kEos = '\x02';

  PromptFamily family = PromptFamily::kPlain;
  std::vector<std::string> controls;       ///< must be in the vocabulary
  std::vector<std::string> weak_controls;  ///< the token if the vocabulary has it, else text
  /// BOS stands before everything: always where the family's template spells it, else where the
  /// tokenizer asks for it.
  bool template_has_bos = true;
  SystemPlace system_place = SystemPlace::kOwnTurn;
  std::optional<std::string> default_system;  ///< used when the caller gives none
  std::string system_open, system_close;
  std::string user_open, user_close;
  std::string assistant_open, assistant_close;
  std::string between_turns;  ///< before every user's turn but the first
  std::string generation;     ///< the opening of the answer
  bool trim_user = false, trim_assistant = false, trim_system = false;
  Thinking thinking = Thinking::kKeep;
  std::optional<std::string> eos_token;  ///< as tokenizer_config.json names it
  std::vector<std::string> end_of_turn;  ///< controls that end an answer
  std::vector<std::string> stop_strings;

  // Prompts over documents: inside the user's first turn, or with markup of their own and no turns.
  bool documents_in_turn = false;
  std::string intro;  ///< before the first document
  /// document_open title title_close text, where there is a title
  std::string document_open, title_close;
  std::string untitled_open;
  std::string document_close;
  /// Around each question; in turns only the first is so opened
  std::string question_open, question_close;
  std::string document_generation;  ///< without turns: the opening of the answer
  /// False: the model was trained on texts alone; titles stay out of the prompt
  bool titles = true;
  bool title_once = false;  ///< no title where the text begins with it
};

/// Documents within the user's turn, or in plain text without turns, of a model whose own template
/// is rendered. The rest of the markup is the template's.
PromptSyntax template_syntax(bool documents_in_turn);

/// What a model folder says about its prompts.
struct DetectedPrompt {
  /// The native family. Empty where the template looks like none of them, or has to be rendered.
  std::optional<PromptSyntax> syntax;
  /// The model's own chat template, which decides; empty where there is none or the family was
  /// named.
  std::string chat_template;
  std::string tool_template;  ///< used instead where tools are given; empty: the same
  std::string file;           ///< where the template stands
  std::optional<std::string> eos_token;
  /// bos_token, eos_token and the like as tokenizer_config.json spells them.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  std::vector<std::string> additional_special_tokens;
  /// It says that there is no bos_token; else the vocabulary's stands in for one it leaves out
  bool without_bos = false;
};

/// Writes the wording into the syntax. Errors: kInvalidArgument with field "prompt.intro",
/// "prompt.document" or "prompt.question": placeholders, bytes that are no text, a spelling in
/// `controls`; any wording for the embedded model's family, which was trained on its own.
Status apply_wording(const PromptWording& wording, PromptSyntax& syntax);

/// The names model.prompt_format takes, but for "auto" and "template".
std::string_view prompt_format_names();

/// `tokenizer_config` may be empty. Errors as PromptFormat::parse().
Result<DetectedPrompt> detect_prompt(std::string_view tokenizer_config,
                                     std::string_view chat_template_file,
                                     const PromptOptions& options);

}  // namespace quire::tokenizer_internal
