#include "engine/chat/prompt_families.h"

#include <boost/json.hpp>

#include "base/json_object.h"
#include "base/utf8.h"

namespace quire::tokenizer_internal {
namespace json = boost::json;
namespace {

constexpr std::string_view kFormats =
    "auto, template, plain, quire, llama2, llama3, llama3.1, mistral, mistral-v0.3, chatml, qwen2, "
    "qwen2.5, qwen3, zephyr, deepseek-r1";

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How documents stand inside the user's turn of a chat model.
void documents_in_user_turn(PromptSyntax& s) {
  s.documents_in_turn = true;
  s.intro = "Answer the question from these documents.\n\n";
  s.document_open = "Document: ";
  s.title_close = "\n";
  s.untitled_open = "Document:\n";
  s.document_close = "\n\n";
  s.question_open = "Question: ";
}

PromptSyntax plain() {
  PromptSyntax s{.family = PromptFamily::kPlain, .template_has_bos = false, .system_close = "\n\n"};
  s.user_open = "User: ";
  s.user_close = "\n";
  s.assistant_open = "Assistant: ";
  s.assistant_close = "\n\n";
  s.generation = "Assistant:";
  s.stop_strings = {"\nQuestion:", "\nUser:"};
  s.title_close = "\n";
  s.document_close = "\n\n";
  s.question_open = "Question: ";
  s.question_close = "\n";
  s.document_generation = "Answer:";
  return s;
}

PromptSyntax llama2() {
  PromptSyntax s{.family = PromptFamily::kLlama2, .system_place = SystemPlace::kFirstUserTurn};
  s.system_open = "<<SYS>>\n";
  s.system_close = "\n<</SYS>>\n\n";
  s.user_open = "[INST] ";
  s.user_close = " [/INST]";
  s.assistant_open = " ";
  s.assistant_close = std::string(" ") + PromptSyntax::kEos;
  s.between_turns = PromptSyntax::kBos;
  s.trim_user = s.trim_assistant = true;
  documents_in_user_turn(s);
  return s;
}

PromptSyntax llama3(bool dates) {
  PromptSyntax s{.family = PromptFamily::kLlama3,
                 .controls = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}};
  s.system_open = "<|start_header_id|>system<|end_header_id|>\n\n";
  if (dates) {
    // The date of the template's own example: today's date would make every prompt of yesterday a
    // miss.
    s.system_open += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
    s.default_system = "";
  }
  s.user_open = "<|start_header_id|>user<|end_header_id|>\n\n";
  s.assistant_open = s.generation = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  s.system_close = s.user_close = s.assistant_close = "<|eot_id|>";
  s.trim_user = s.trim_assistant = s.trim_system = true;
  s.end_of_turn = {"<|eot_id|>"};
  documents_in_user_turn(s);
  return s;
}

/// v0.1 and v0.2: [INST] is text.
PromptSyntax mistral(std::string_view chat_template) {
  PromptSyntax s{.family = PromptFamily::kMistral, .system_place = SystemPlace::kFirstUserTurn};
  // The revision of 2024
  const bool later = has(chat_template, "\" [INST] \"") || has(chat_template, "' [INST] '");
  s.system_close = "\n\n";
  s.user_open = later ? " [INST] " : "[INST] ";
  s.user_close = " [/INST]";
  s.assistant_open = later ? " " : "";
  s.assistant_close = PromptSyntax::kEos;
  if (has(chat_template, "eos_token + ' '") || has(chat_template, "eos_token+ ' '"))
    s.assistant_close += " ";
  s.trim_assistant = has(chat_template, "|trim") || has(chat_template, "| trim");
  documents_in_user_turn(s);
  return s;
}

/// v0.3: [INST] is a control token.
PromptSyntax mistral_v3(std::string_view chat_template) {
  PromptSyntax s{.family = PromptFamily::kMistral, .controls = {"[INST]", "[/INST]"}};
  const bool first = has(chat_template, "loop.first and system_message");
  s.system_place = first ? SystemPlace::kFirstUserTurn : SystemPlace::kLastUserTurn;
  s.system_close = "\n\n";
  s.user_open = "[INST] ";
  s.user_close = "[/INST]";
  s.assistant_open = " ";
  s.assistant_close = PromptSyntax::kEos;
  s.trim_assistant = chat_template.empty() || has(chat_template, "|trim") ||
                     has(chat_template, "| trim");
  documents_in_user_turn(s);
  return s;
}

PromptSyntax chatml(std::optional<std::string> default_system) {
  PromptSyntax s{.family = PromptFamily::kChatMl,
                 .controls = {"<|im_start|>", "<|im_end|>"},
                 .template_has_bos = false};
  s.default_system = std::move(default_system);
  s.system_open = "<|im_start|>system\n";
  s.user_open = "<|im_start|>user\n";
  s.assistant_open = s.generation = "<|im_start|>assistant\n";
  s.system_close = s.user_close = s.assistant_close = "<|im_end|>\n";
  s.end_of_turn = {"<|im_end|>"};
  documents_in_user_turn(s);
  return s;
}

PromptSyntax qwen3(bool enable_thinking) {
  PromptSyntax s = chatml(std::nullopt);
  s.family = PromptFamily::kQwen3;
  s.weak_controls = {"<think>", "</think>"};
  if (!enable_thinking) s.generation += "<think>\n\n</think>\n\n";
  s.thinking = Thinking::kQwen3;
  return s;
}

PromptSyntax zephyr() {
  PromptSyntax s{.family = PromptFamily::kZephyr, .template_has_bos = false};
  const std::string end = std::string(1, PromptSyntax::kEos) + "\n";
  s.system_open = "<|system|>\n";
  s.user_open = "<|user|>\n";
  s.assistant_open = "<|assistant|>\n";
  s.generation = "<|assistant|>\n";
  s.system_close = s.user_close = s.assistant_close = end;
  documents_in_user_turn(s);
  return s;
}

PromptSyntax deepseek_r1(std::string_view chat_template) {
  PromptSyntax s{.family = PromptFamily::kDeepSeekR1,
                 .controls = {"<\xEF\xBD\x9CUser\xEF\xBD\x9C>",
                              "<\xEF\xBD\x9C"
                              "Assistant\xEF\xBD\x9C>"}};
  s.weak_controls = {"<think>", "</think>"};
  s.user_open = s.controls[0];
  s.assistant_open = s.generation = s.controls[1];
  s.assistant_close = PromptSyntax::kEos;
  if (chat_template.empty() || has(chat_template, "<think>\\n")) s.generation += "<think>\n";
  s.thinking = Thinking::kDropThoughts;
  documents_in_user_turn(s);
  return s;
}

Result<PromptSyntax> quire_syntax(const json::object& config) {
  const std::string file = "tokenizer_config.json";
  const json::object* prompt = object_at(config, "quire_prompt");
  if (prompt == nullptr)
    return Status::invalid("model.prompt_format",
                           file + ": has no 'quire_prompt', which the format quire needs");
  PromptSyntax s{.family = PromptFamily::kQuire, .template_has_bos = false};
  const auto document = string_at(*prompt, "document_prefix"),
             question = string_at(*prompt, "question_prefix"),
             answer = string_at(*prompt, "answer_prefix");
  if (!document || document->empty() || !question || question->empty() || !answer ||
      answer->empty()) {
    return Status::invalid("quire_prompt",
                           file +
                               ": quire_prompt must have document_prefix, question_prefix and "
                               "answer_prefix, each a control token");
  }
  s.controls = {*document, *question, *answer};
  if (const json::array* stop = array_at(*prompt, "stop")) {
    for (const json::value& item : *stop) {
      if (!item.is_string() || item.get_string().empty())
        return Status::invalid("quire_prompt.stop",
                               file + ": quire_prompt.stop must be a list of tokens");
      s.end_of_turn.emplace_back(item.get_string());
      s.controls.emplace_back(item.get_string());
    }
  }
  s.system_place = bool_at(*prompt, "system").value_or(false) ? SystemPlace::kOwnTurn
                                                              : SystemPlace::kNowhere;
  s.user_open = *question;
  s.assistant_open = s.generation = *answer;
  s.assistant_close = s.end_of_turn.empty() ? std::string(1, PromptSyntax::kEos)
                                            : s.end_of_turn.front();
  s.document_open = s.untitled_open = *document;
  s.title_close = ": ";
  s.titles = bool_at(*prompt, "titles").value_or(true);
  s.title_once = true;
  s.question_open = *question;
  s.document_generation = *answer;
  return s;
}

/// The default system message a ChatML template spells out: the text between "<|im_start|>system\n"
/// and "<|im_end|>" in one literal, or the value set for system_message.
std::optional<std::string> chatml_default_system(std::string_view chat_template) {
  for (const std::string_view open :
       {std::string_view("<|im_start|>system\n"), std::string_view("<|im_start|>system\\n")}) {
    for (std::size_t at = chat_template.find(open); at != std::string_view::npos;
         at = chat_template.find(open, at + 1)) {
      const std::string_view rest = chat_template.substr(at + open.size());
      const std::string_view text = rest.substr(0, std::min(rest.find("<|im_end|>"), rest.size()));
      if (!text.empty() && text.find_first_of("'\"{}+") == std::string_view::npos)
        return std::string(text);
    }
  }
  constexpr std::string_view kSet = "set system_message = '";
  const std::size_t at = chat_template.find(kSet);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view rest = chat_template.substr(at + kSet.size());
  return std::string(rest.substr(0, rest.find('\'')));
}

PromptSyntax chatml_of(std::string_view chat_template) {
  PromptSyntax s = chatml(chatml_default_system(chat_template));
  s.template_has_bos = has(chat_template, "bos_token");
  // Yi-1.5: the bare text
  if (has(chat_template, "{{ system_message }}")) s.system_open = s.system_close = "";
  return s;
}

Result<PromptSyntax> named(const std::string& name, const json::object& config,
                           const PromptOptions& options) {
  if (name == "plain") return plain();
  if (name == "quire") return quire_syntax(config);
  if (name == "llama2") return llama2();
  if (name == "llama3") return llama3(false);
  if (name == "llama3.1") return llama3(true);
  if (name == "mistral") return mistral("");
  if (name == "mistral-v0.3") return mistral_v3("");
  if (name == "chatml") return chatml(std::nullopt);
  if (name == "qwen2") return chatml("You are a helpful assistant.");
  if (name == "qwen2.5")
    return chatml("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.");
  if (name == "qwen3") return qwen3(options.enable_thinking);
  if (name == "zephyr") return zephyr();
  if (name == "deepseek-r1") return deepseek_r1("");
  return Status::invalid("model.prompt_format",
                         "unknown prompt format '" + name + "'; one of: " + std::string(kFormats));
}

/// tokenizer_config.json's template: a string, which is "default", or a list of named ones.
std::string template_of(const json::object& config, std::string_view wanted) {
  if (auto text = string_at(config, "chat_template"))
    return wanted == "default" ? *text : std::string();
  const json::array* list = array_at(config, "chat_template");
  if (list == nullptr) return {};
  for (const json::value& item : *list) {
    const json::object* entry = item.if_object();
    if (entry != nullptr && string_at(*entry, "name") == wanted)
      return string_at(*entry, "template").value_or("");
  }
  return {};
}

/// The family a template looks like. Only a guess: whether it is true is for the template to say.
std::optional<PromptSyntax> resembled(std::string_view t, const PromptOptions& options) {
  if (has(t, "<|im_start|>"))
    return has(t, "reasoning_content") || has(t, "enable_thinking") ? qwen3(options.enable_thinking)
                                                                    : chatml_of(t);
  if (has(t, "<|start_header_id|>")) return llama3(has(t, "Cutting Knowledge Date"));
  if (has(t, "<\xEF\xBD\x9CUser\xEF\xBD\x9C>")) return deepseek_r1(t);
  if (has(t, "<<SYS>>")) return llama2();
  if (has(t, "[INST]")) return has(t, " [/INST]") ? mistral(t) : mistral_v3(t);
  if (has(t, "<|user|>") && has(t, "<|assistant|>") && has(t, "eos_token")) return zephyr();
  return std::nullopt;
}

/// Fills the family, the template and where it stands.
Status detect(const json::object& config, std::string_view chat_template_file,
              const PromptOptions& options, DetectedPrompt& found) {
  if (options.format != "auto" && options.format != "template") {
    QUIRE_ASSIGN_OR_RETURN(found.syntax, named(options.format, config, options));
    return {};
  }
  if (options.format == "auto" && config.contains("quire_prompt")) {
    QUIRE_ASSIGN_OR_RETURN(found.syntax, quire_syntax(config));
    return {};
  }
  found.file = chat_template_file.empty() ? "tokenizer_config.json" : "chat_template.jinja";
  found.chat_template = chat_template_file.empty() ? template_of(config, "default")
                                                   : std::string(chat_template_file);
  if (chat_template_file.empty()) found.tool_template = template_of(config, "tool_use");
  if (options.format == "template") {
    if (!found.chat_template.empty()) return {};
    return Status::invalid(
        "model.prompt_format",
        "the model folder has no chat template, which the format template needs");
  }
  found.syntax = found.chat_template.empty() ? plain() : resembled(found.chat_template, options);
  return {};
}

}  // namespace

Status apply_wording(const PromptWording& wording, PromptSyntax& syntax) {
  constexpr std::string_view kAuto = "auto", kTitle = "{title}", kText = "{text}";
  for (const auto& [name, words] : {std::pair{"prompt.intro", &wording.intro},
                                    {"prompt.document", &wording.document},
                                    {"prompt.question", &wording.question}}) {
    if (*words == kAuto) continue;
    if (syntax.family == PromptFamily::kQuire)
      return Status::invalid(name,
                             "is fixed for this model, which was trained on its own markup; "
                             "use auto");
    for (const char c : *words) {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')
        return Status::invalid(name, "holds a control character");
    }
    if (tokenizer_internal::valid_utf8_prefix(*words) != words->size())
      return Status::invalid(name, "is not valid UTF-8");
    for (const auto* controls : {&syntax.controls, &syntax.weak_controls})
      for (const std::string& control : *controls)
        if (has(*words, control))
          return Status::invalid(name, "holds '" + control + "', a control token of this model");
  }
  if (wording.intro != kAuto) syntax.intro = wording.intro;
  if (wording.question != kAuto) syntax.question_open = wording.question;
  if (wording.document == kAuto) return {};
  const std::string_view words = wording.document;
  const std::size_t text = words.find(kText), title = words.find(kTitle);
  const bool titled = title != std::string_view::npos;
  if (text == std::string_view::npos || words.find(kText, text + 1) != std::string_view::npos)
    return Status::invalid("prompt.document", "must hold {text} once");
  if (titled && (title > text || words.find(kTitle, title + 1) != std::string_view::npos))
    return Status::invalid("prompt.document", "may hold {title} once, before {text}");
  syntax.document_close = words.substr(text + kText.size());
  syntax.titles = titled;
  syntax.document_open = words.substr(0, titled ? title : text);
  syntax.title_close = titled ? words.substr(title + kTitle.size(), text - title - kTitle.size())
                              : std::string_view();
  syntax.untitled_open = syntax.document_open;
  while (titled && syntax.untitled_open.ends_with(' ')) syntax.untitled_open.pop_back();
  syntax.untitled_open += syntax.title_close;
  return {};
}

std::string_view prompt_format_names() { return kFormats.substr(kFormats.find("plain")); }

PromptSyntax template_syntax(bool documents_in_turn) {
  PromptSyntax s;
  if (documents_in_turn) {
    documents_in_user_turn(s);
  } else {
    s = plain();
    s.stop_strings.clear();
  }
  s.family = PromptFamily::kTemplate;
  s.template_has_bos = false;
  return s;
}

Result<DetectedPrompt> detect_prompt(std::string_view tokenizer_config,
                                     std::string_view chat_template_file,
                                     const PromptOptions& options) {
  DetectedPrompt found;
  json::object config;
  if (!tokenizer_config.empty()) {
    QUIRE_ASSIGN_OR_RETURN(config, parse_json_object("tokenizer_config.json", tokenizer_config));
  }
  if (const json::array* more = array_at(config, "additional_special_tokens")) {
    for (const json::value& item : *more) {
      if (item.is_string()) found.additional_special_tokens.emplace_back(item.get_string());
      if (item.is_object())
        found.additional_special_tokens.push_back(
            string_at(item.get_object(), "content").value_or(""));
    }
  }
  if (const json::value* bos = config.if_contains("bos_token")) found.without_bos = bos->is_null();
  QUIRE_RETURN_IF_ERROR(detect(config, chat_template_file, options, found));
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token",
                           "cls_token", "mask_token"}) {
    const json::object* token = object_at(config, name);
    const auto text = token != nullptr ? string_at(*token, "content") : string_at(config, name);
    if (text) found.special_tokens.emplace_back(name, *text);
    if (text && std::string_view(name) == "eos_token") found.eos_token = text;
  }
  return found;
}

}  // namespace quire::tokenizer_internal
