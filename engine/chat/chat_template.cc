#include "engine/chat/chat_template.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <iterator>

#include "base/log.h"
#include "base/sha256.h"
#include "engine/chat/prompt_families.h"
#include "engine/chat/template_prompt.h"
#include "engine/tokenizer/gguf_vocab.h"

namespace quire {

using tokenizer_internal::PromptSyntax;
using tokenizer_internal::SystemPlace;
using tokenizer_internal::TemplatePrompt;
using tokenizer_internal::Thinking;

struct PromptFormat::Impl {
  struct Control {
    std::string text;
    std::int32_t id;
  };
  std::shared_ptr<const Tokenizer> tokenizer;
  PromptSyntax syntax;
  std::vector<Control> controls;  ///< longest first
  std::optional<std::int32_t> bos, eos;
  std::vector<std::int32_t> stop_ids;
  std::array<std::uint8_t, 32> digest{};
  std::optional<TemplatePrompt> own;  ///< the model's own template, if it decides
  /// Another of its templates, for conversations with tools
  std::optional<TemplatePrompt> own_tools;
  bool cuts = false;  ///< kTemplate: the place of documents within the user's turn is known
  ToolStyle fallback_style = ToolStyle::kHermes;  ///< where the template shows no calls

  /// The template for conversations with tools; null: there is none
  const TemplatePrompt* tool_template() const {
    return own_tools ? &*own_tools : own ? &*own : nullptr;
  }
  bool rendered() const { return syntax.family == PromptFamily::kTemplate; }
  Status read_templates(const tokenizer_internal::DetectedPrompt& found,
                        const PromptOptions& options);
  void find_cuts();
  void add_stop_ids();
};

namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";

std::string_view right_trimmed(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string_view trimmed(std::string_view text, bool really = true) {
  if (!really) return text;
  text = right_trimmed(text);
  return text.substr(std::min(text.find_first_not_of(kSpace), text.size()));
}

std::string_view without_newlines(std::string_view text, bool left, bool right) {
  while (left && text.starts_with('\n')) text.remove_prefix(1);
  while (right && text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

/// An answer of an earlier turn, cut at the end of its thoughts.
struct Answer {
  std::string_view thoughts, rest;
};
Answer split_thoughts(std::string_view content) {
  constexpr std::string_view kOpen = "<think>", kClose = "</think>";
  const std::size_t first = content.find(kClose);
  if (first == std::string_view::npos) return {{}, content};
  std::string_view thoughts = without_newlines(content.substr(0, first), false, true);
  if (const std::size_t open = thoughts.rfind(kOpen); open != std::string_view::npos)
    thoughts.remove_prefix(open + kOpen.size());
  return {without_newlines(thoughts, true, false),
          content.substr(content.rfind(kClose) + kClose.size())};
}

/// Collects markup and contents. Text between two control tokens is encoded as one, so that ids do
/// not depend on where markup ends and content begins; contents never become control tokens.
class Renderer {
 public:
  template <class Impl>
  Renderer(const Impl& impl, std::vector<std::int32_t>& ids, std::vector<TokenSpan>* spans)
      : tokenizer_(*impl.tokenizer), ids_(ids), spans_(spans), bos_(impl.bos), eos_(impl.eos) {
    for (const auto& control : impl.controls) controls_.push_back({control.text, control.id});
  }

  /// Whether the next text stands alone or continues.
  void start(Start start) { start_ = start; }

  void control(std::int32_t id) {
    flush();
    ids_.push_back(id);
    if (spans_ != nullptr) spans_->push_back(outside());
    start_ = tokenizer_.space_after_special() ? Start::kText : Start::kMiddle;
  }

  void markup(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
      if (text[at] == PromptSyntax::kBos || text[at] == PromptSyntax::kEos) {
        const auto id = text[at] == PromptSyntax::kBos ? bos_ : eos_;
        if (id) control(*id);
        ++at;
        continue;
      }
      const auto known = std::find_if(controls_.begin(), controls_.end(), [&](const auto& c) {
        return text.compare(at, c.first.size(), c.first) == 0;
      });
      if (known != controls_.end()) {
        control(known->second);
        at += known->first.size();
      } else {
        pending_.push_back(text[at++]);
      }
    }
  }

  void content(std::string_view text) { pending_ += text; }

  /// What a template rendered: only its own bytes can be control tokens.
  void marked(const jinja::Text& text) {
    for (std::size_t at = 0; at < text.size();) {
      const bool own = text.mark_at(at) == jinja::kTemplateMark;
      std::size_t end = at + 1;
      while (end < text.size() && (text.mark_at(end) == jinja::kTemplateMark) == own) ++end;
      const std::string_view part = std::string_view(text.bytes).substr(at, end - at);
      std::size_t done = 0;
      if (own) {
        for (const ControlSpan& c : tokenizer_.find_controls(part)) {
          content(part.substr(done, c.begin - done));
          control(c.id);
          done = c.end;
        }
      }
      content(part.substr(done));
      at = end;
    }
  }

  /// The text the spans speak of. Once.
  void document(std::string_view text) {
    text_begin_ = pending_.size();
    text_size_ = text.size();
    state_ = State::kPending;
    pending_ += text;
  }

  void flush() {
    if (pending_.empty() && state_ != State::kPending) return;
    if (spans_ == nullptr) {
      const auto ids = tokenizer_.encode(pending_, Special::kNone, start_);
      ids_.insert(ids_.end(), ids.begin(), ids.end());
    } else {
      const Encoding encoding = tokenizer_.encode_with_offsets(pending_, Special::kNone, start_);
      ids_.insert(ids_.end(), encoding.ids.begin(), encoding.ids.end());
      for (const TokenSpan& span : encoding.spans) {
        spans_->push_back(state_ == State::kPending ? TokenSpan{clip(span.begin), clip(span.end)}
                                                    : outside());
      }
    }
    if (state_ == State::kPending) state_ = State::kAfter;
    pending_.clear();
    start_ = Start::kMiddle;
  }

 private:
  enum class State { kBefore, kPending, kAfter };

  TokenSpan outside() const {
    const auto at = static_cast<std::uint32_t>(state_ == State::kAfter ? text_size_ : 0);
    return {at, at};
  }
  std::uint32_t clip(std::size_t at) const {
    return static_cast<std::uint32_t>(std::clamp(at, text_begin_, text_begin_ + text_size_) -
                                      text_begin_);
  }

  const Tokenizer& tokenizer_;
  std::vector<std::int32_t>& ids_;
  std::vector<TokenSpan>* spans_;
  std::optional<std::int32_t> bos_, eos_;
  std::vector<std::pair<std::string_view, std::int32_t>> controls_;
  std::string pending_;
  Start start_ = Start::kMiddle;
  State state_ = State::kBefore;
  std::size_t text_begin_ = 0, text_size_ = 0;
};

/// BOS, and how the first text after it begins.
template <class Impl>
void begin(const Impl& impl, Renderer& out) {
  out.start(Start::kText);
  if (!impl.bos || !(impl.syntax.template_has_bos || impl.tokenizer->add_bos())) return;
  out.control(*impl.bos);
  if (!impl.syntax.template_has_bos) out.start(Start::kText);
}

/// The same where the text comes from a template, which may spell BOS itself.
template <class Impl>
void begin_rendered(const Impl& impl, const jinja::Text& text, Renderer& out) {
  out.start(Start::kText);
  if (!impl.bos || !impl.tokenizer->add_bos()) return;
  std::size_t own = 0;
  while (own < text.size() && text.mark_at(own) == jinja::kTemplateMark) ++own;
  const auto controls = impl.tokenizer->find_controls(std::string_view(text.bytes).substr(0, own));
  if (!controls.empty() && controls.front().begin == 0 && controls.front().id == *impl.bos) return;
  out.control(*impl.bos);
  out.start(Start::kText);
}

template <class Impl>
std::vector<std::int32_t> whole_ids(const Impl& impl, const jinja::Text& text) {
  std::vector<std::int32_t> ids;
  Renderer out(impl, ids, nullptr);
  begin_rendered(impl, text, out);
  out.marked(text);
  out.flush();
  return ids;
}

void put_system(const PromptSyntax& s, std::string_view system, Renderer& out) {
  out.markup(s.system_open);
  out.content(trimmed(system, s.trim_system));
  out.markup(s.system_close);
}

void put_answer(const PromptSyntax& s, std::string_view content, bool after_last_question,
                bool last, Renderer& out) {
  if (s.thinking == Thinking::kKeep) return out.content(trimmed(content, s.trim_assistant));
  const Answer answer = split_thoughts(content);
  if (s.thinking == Thinking::kDropThoughts) return out.content(answer.rest);
  const bool cut = answer.rest.size() != content.size();
  const std::string_view rest = cut ? without_newlines(answer.rest, true, false) : content;
  if (after_last_question && (last || !answer.thoughts.empty())) {
    out.markup("<think>\n");
    out.content(without_newlines(answer.thoughts, true, true));
    out.markup("\n</think>\n\n");
    out.content(without_newlines(rest, true, false));
  } else {
    out.content(rest);
  }
}

Status role_error(std::size_t i, std::string message) {
  return Status::invalid("messages[" + std::to_string(i) + "].role", std::move(message));
}

/// Roles of a conversation after its system message: known ones, and alternating where `strict`.
Status check_roles(std::span<const ChatMessage> messages, std::size_t first, bool strict) {
  for (std::size_t i = first; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system") return role_error(i, "a system message must be the first message");
    if (role != "user" && role != "assistant")
      return role_error(i, "unknown role '" + role + "'; must be system, user or assistant");
    if (strict && (role == "user") != ((i - first) % 2 == 0))
      return role_error(i, "roles must alternate: user, assistant, user, ...");
  }
  return {};
}

std::string one_line(std::string_view title) {
  std::string line(trimmed(title));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }, ' ');
  return line;
}

/// What only a template can render.
bool needs_template(std::span<const ChatMessage> messages) {
  return std::any_of(messages.begin(), messages.end(), [](const ChatMessage& m) {
    return m.role == "tool" || m.role == "developer" || !m.tool_calls.empty() ||
           !m.reasoning_content.empty();
  });
}

/// Conversations that show in what a family and a template may differ, and whether each opens an
/// answer.
struct Probe {
  std::vector<ChatMessage> messages;
  bool generation = true;
};
const std::vector<Probe>& probes() {
  static const std::vector<Probe> kProbes = [] {
    const ChatMessage hi{"user", "Hi there"}, hello{"assistant", "Hello."}, bye{"user", "Bye!"},
        system{"system", "Be kind."};
    const ChatMessage thought{"assistant", "<think>\nA greeting.\n</think>\n\nHello."};
    return std::vector<Probe>{
        {{hi}},
        {{hi}, false},
        {{system, hi}},
        {{system, hi}, false},
        {{hi, hello, bye}},
        {{system, hi, hello, bye}},
        {{hi, hello}, false},
        {{hi, hello, bye, hello}, false},
        {{{"user", "  \n two\n\n lines \n"}, {"assistant", " ok \n"}, {"user", "\ttab"}}},
        {{{"system", " \n odd \n"}, {"user", " x "}}},
        {{hi, thought, bye}},
        {{hi, thought}, false}};
  }();
  return kProbes;
}

Status resolve_controls(const PromptSyntax& syntax, const Tokenizer& tokenizer, auto& controls) {
  for (const std::string& text : syntax.controls) {
    const auto id = tokenizer.token_id(text);
    if (!id) {
      return Status::invalid("model.prompt_format",
                             "the prompt format " + std::string(prompt_family_name(syntax.family)) +
                                 " needs the token '" + text + "', which the vocabulary (" +
                                 std::string(tokenizer.description()) + ") lacks");
    }
    controls.push_back({text, *id});
  }
  for (const std::string& text : syntax.weak_controls) {
    if (const auto id = tokenizer.token_id(text)) controls.push_back({text, *id});
  }
  std::stable_sort(controls.begin(), controls.end(),
                   [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  return {};
}

/// Whether documents have one place in the user's turn: what stands before it depends on the system
/// message alone, and what stands behind it does not depend on the system message.
Status check_cuts(const TemplatePrompt& own, const PromptSyntax& s) {
  const std::vector<ChatMessage> one = {{"user", "Why?"}}, other = {{"user", "When was that?"}},
                                 turns = {{"user", "Why?"},
                                          {"assistant", "So."},
                                          {"user", "When was that?"}};
  const auto cut = [&](std::optional<std::string_view> system,
                       const std::vector<ChatMessage>& messages) {
    return own.cut(system, s.intro, s.question_open, messages);
  };
  QUIRE_ASSIGN_OR_RETURN(const auto first, cut(std::nullopt, one));
  QUIRE_ASSIGN_OR_RETURN(const auto second, cut(std::nullopt, other));
  QUIRE_ASSIGN_OR_RETURN(const auto later, cut(std::nullopt, turns));
  if (first.before.bytes != second.before.bytes || first.before.bytes != later.before.bytes)
    return Status::invalid("", "what stands before the user's text depends on what follows");
  if (!own.shows_system()) return {};
  QUIRE_ASSIGN_OR_RETURN(const auto kind, cut("Be kind.", one));
  if (kind.after.bytes != first.after.bytes)
    return Status::invalid("", "what stands behind the user's text depends on the system message");
  return {};
}

}  // namespace

std::string_view prompt_family_name(PromptFamily family) {
  switch (family) {
    case PromptFamily::kPlain:
      return "plain";
    case PromptFamily::kQuire:
      return "quire";
    case PromptFamily::kLlama2:
      return "llama2";
    case PromptFamily::kLlama3:
      return "llama3";
    case PromptFamily::kMistral:
      return "mistral";
    case PromptFamily::kChatMl:
      return "chatml";
    case PromptFamily::kQwen3:
      return "qwen3";
    case PromptFamily::kZephyr:
      return "zephyr";
    case PromptFamily::kDeepSeekR1:
      return "deepseek-r1";
    case PromptFamily::kTemplate:
      return "template";
  }
  return "unknown";
}

Status PromptFormat::Impl::read_templates(const tokenizer_internal::DetectedPrompt& found,
                                          const PromptOptions& options) {
  if (found.chat_template.empty()) return {};
  tokenizer_internal::TemplateContext context{
      .special_tokens = found.special_tokens,
      .additional_special_tokens = found.additional_special_tokens,
      .enable_thinking = options.enable_thinking};
  // A token a model lacks is an empty text: templates add it to others without asking.
  const auto add = [&](const char* name, const std::optional<std::int32_t>& id) {
    const bool named = std::any_of(found.special_tokens.begin(), found.special_tokens.end(),
                                   [&](const auto& token) { return token.first == name; });
    if (!named)
      context.special_tokens.emplace_back(name,
                                          id ? tokenizer->token_bytes(*id) : std::string_view());
  };
  add("bos_token", found.without_bos ? std::nullopt : bos);
  add("eos_token", eos);
  auto made = TemplatePrompt::make(found.chat_template, context);
  if (!made.ok()) {
    return Status::invalid(found.file, found.file + ": " + made.status().message() +
                                           "; set model.prompt_format to one of: " +
                                           std::string(tokenizer_internal::prompt_format_names()));
  }
  own = std::move(*made);
  if (found.chat_template.find("SmolLM") != std::string::npos) fallback_style = ToolStyle::kSmolLm;
  if (found.tool_template.empty()) return {};
  auto with_tools = TemplatePrompt::make(found.tool_template, std::move(context));
  if (with_tools.ok()) {
    own_tools = std::move(*with_tools);
  } else {
    log_warning("the chat template for tools cannot be used",
                {{"reason", with_tools.status().message()}});
  }
  return {};
}

void PromptFormat::Impl::find_cuts() {
  syntax = tokenizer_internal::template_syntax(/*documents_in_turn=*/true);
  const Status known = check_cuts(*own, syntax);
  cuts = known.ok();
  if (cuts) return;
  syntax = tokenizer_internal::template_syntax(/*documents_in_turn=*/false);
  log_warning(
      "documents get plain markup without turns: their place in the model's chat template cannot "
      "be told; "
      "set model.prompt_format to a family that fits the model",
      {{"reason", known.message()}});
}

void PromptFormat::Impl::add_stop_ids() {
  for (const std::string& text : syntax.end_of_turn) {
    if (const auto id = tokenizer->token_id(text)) stop_ids.push_back(*id);
  }
  if (rendered()) {
    const std::string& after = own->after_answer();
    const auto spelled = tokenizer->find_controls(after);
    if (!spelled.empty() &&
        trimmed(std::string_view(after).substr(0, spelled.front().begin)).empty()) {
      stop_ids.push_back(spelled.front().id);
    }
  }
  std::sort(stop_ids.begin(), stop_ids.end());
  stop_ids.erase(std::unique(stop_ids.begin(), stop_ids.end()), stop_ids.end());
}

PromptFormat::PromptFormat(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
PromptFormat::PromptFormat(PromptFormat&&) noexcept = default;
PromptFormat& PromptFormat::operator=(PromptFormat&&) noexcept = default;
PromptFormat::PromptFormat(const PromptFormat&) = default;
PromptFormat& PromptFormat::operator=(const PromptFormat&) = default;
PromptFormat::~PromptFormat() = default;

bool PromptFormat::same_prompts(const PromptFormat& native, const TemplatePrompt& own) {
  return std::all_of(probes().begin(), probes().end(), [&](const Probe& probe) {
    const auto ids = native.chat(probe.messages, probe.generation);
    const auto text = own.render(probe.messages, probe.generation);
    if (!ids.ok() || !text.ok()) return ids.ok() == text.ok();
    return *ids == whole_ids(*native.impl_, *text);
  });
}

Result<PromptFormat> PromptFormat::load(const std::filesystem::path& model_dir,
                                        std::shared_ptr<const Tokenizer> tokenizer,
                                        const PromptOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> gguf,
                         tokenizer_internal::gguf_tokenizer_config(model_dir));
  std::string contents[2] = {gguf.value_or(""), ""};
  const char* names[2] = {"tokenizer_config.json", "chat_template.jinja"};
  for (int i = 0; i < 2 && !gguf; ++i) {
    std::ifstream in(model_dir / names[i], std::ios::binary);
    if (in) contents[i].assign(std::istreambuf_iterator<char>(in), {});
  }
  auto format = parse(contents[0], contents[1], std::move(tokenizer), options);
  if (!format.ok()) return format.status().with_context(model_dir.string());
  return format;
}

Result<PromptFormat> PromptFormat::parse(std::string_view tokenizer_config,
                                         std::string_view chat_template_file,
                                         std::shared_ptr<const Tokenizer> tokenizer,
                                         const PromptOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(
      auto found, tokenizer_internal::detect_prompt(tokenizer_config, chat_template_file, options));
  auto impl = std::make_shared<Impl>();
  impl->bos = tokenizer->bos_id();
  impl->stop_ids = tokenizer->eos_ids();
  if (found.eos_token) impl->eos = tokenizer->token_id(*found.eos_token);
  if (!impl->eos && !impl->stop_ids.empty()) impl->eos = impl->stop_ids.front();
  impl->tokenizer = std::move(tokenizer);
  QUIRE_RETURN_IF_ERROR(impl->read_templates(found, options));
  bool native = found.syntax.has_value();
  if (native) {
    impl->syntax = *found.syntax;
    const Status resolved = resolve_controls(impl->syntax, *impl->tokenizer, impl->controls);
    if (!resolved.ok() && !impl->own) return resolved;
    native = resolved.ok() && (!impl->own || same_prompts(PromptFormat(impl), *impl->own));
    if (!native) {
      log_info("the chat template is rendered itself: it differs from the family it looks like",
               {{"family", std::string(prompt_family_name(impl->syntax.family))}});
    }
  }
  if (!native) {
    impl->controls.clear();
    impl->find_cuts();
  }
  QUIRE_RETURN_IF_ERROR(tokenizer_internal::apply_wording(options.wording, impl->syntax));
  impl->add_stop_ids();
  const PromptFormat format{impl};
  Sha256 hash;
  const PromptSyntax& syntax = impl->syntax;
  hash.update_field(impl->rendered() ? "prompt-format-template-1" : "prompt-format-1");
  for (const std::string* part : {&syntax.system_open, &syntax.system_close, &syntax.user_open,
                                  &syntax.intro, &syntax.document_open, &syntax.title_close,
                                  &syntax.untitled_open, &syntax.document_close}) {
    hash.update_field(*part);
  }
  hash.update_u64(static_cast<std::uint64_t>(syntax.titles));
  hash.update_u64(static_cast<std::uint64_t>(syntax.title_once));
  if (impl->rendered()) {
    hash.update_field(found.chat_template);
    for (const auto& [name, text] : found.special_tokens) {
      hash.update_field(name);
      hash.update_field(text);
    }
    for (const std::string& text : found.additional_special_tokens) hash.update_field(text);
    hash.update_u64(static_cast<std::uint64_t>(options.enable_thinking | impl->cuts << 1));
  }
  const auto prefix = format.prefix();
  if (!prefix.ok()) return prefix.status();
  for (const std::int32_t id : *prefix) hash.update_u64(static_cast<std::uint64_t>(id));
  impl->digest = std::bit_cast<std::array<std::uint8_t, 32>>(hash.finish());
  return format;
}

PromptWording PromptFormat::wording() const {
  const PromptSyntax& s = impl_->syntax;
  PromptWording out{.intro = s.intro, .document = s.document_open, .question = s.question_open};
  if (s.titles) out.document += "{title}" + s.title_close;
  out.document += "{text}" + s.document_close;
  return out;
}

Result<PromptFormat> PromptFormat::with(const PromptWording& wording) const {
  if (wording == PromptWording()) return *this;
  auto impl = std::make_shared<Impl>(*impl_);
  QUIRE_RETURN_IF_ERROR(tokenizer_internal::apply_wording(wording, impl->syntax));
  const PromptWording question{.question = wording.question};
  if (wording != question) {  // the question stands behind everything that is cached
    Sha256 hash;
    hash.update(std::as_bytes(std::span(impl_->digest)));
    hash.update_field(wording.intro);
    hash.update_field(wording.document);
    impl->digest = std::bit_cast<std::array<std::uint8_t, 32>>(hash.finish());
  }
  return PromptFormat(std::move(impl));
}

Result<std::vector<std::int32_t>> PromptFormat::prefix(
    std::optional<std::string_view> system) const {
  const PromptSyntax& s = impl_->syntax;
  const ChatMessage any{"user", "?"};
  if (impl_->rendered() && system && !impl_->own->shows_system()) {
    const ChatMessage both[] = {{"system", std::string(*system)}, any};
    // In the template's own words, if it has some
    const auto refused = impl_->own->render(both, true);
    if (!refused.ok()) return refused.status().with_field("system");
    return Status::invalid("system",
                           "this model's chat template has no place for a system message");
  }
  if (impl_->cuts) {
    QUIRE_ASSIGN_OR_RETURN(const auto cut,
                           impl_->own->cut(system, s.intro, s.question_open, std::span(&any, 1)));
    return whole_ids(*impl_, cut.before);
  }
  if (system && s.system_place == SystemPlace::kNowhere) {
    return Status::invalid("system", "this model (prompt format " +
                                         std::string(prompt_family_name(s.family)) +
                                         ") has no system message");
  }
  if (!system && s.default_system) system = *s.default_system;
  std::vector<std::int32_t> ids;
  Renderer out(*impl_, ids, nullptr);
  begin(*impl_, out);
  if (system && s.system_place == SystemPlace::kOwnTurn) put_system(s, *system, out);
  if (s.documents_in_turn) out.markup(s.user_open);
  if (system && s.system_place != SystemPlace::kOwnTurn) put_system(s, *system, out);
  out.markup(s.intro);
  out.flush();
  return ids;
}

Result<DocumentTokens> PromptFormat::document(std::string_view title, std::string_view text) const {
  const PromptSyntax& s = impl_->syntax;
  DocumentTokens document;
  Renderer out(*impl_, document.ids, &document.spans);
  const std::string name = one_line(title);
  if (name.empty() || !s.titles || (s.title_once && text.starts_with(name))) {
    out.markup(s.untitled_open);
  } else {
    out.markup(s.document_open);
    out.content(name);
    out.markup(s.title_close);
  }
  out.document(text);
  out.markup(s.document_close);
  out.flush();
  return document;
}

Result<std::vector<std::int32_t>> PromptFormat::suffix(std::string_view question) const {
  const ChatMessage message{"user", std::string(question)};
  return suffix(std::span(&message, 1));
}

Result<std::vector<std::int32_t>> PromptFormat::suffix(std::span<const ChatMessage> messages,
                                                       bool continue_last) const {
  const PromptSyntax& s = impl_->syntax;
  if (messages.empty()) return Status::invalid("messages", "at least one message is needed");
  QUIRE_RETURN_IF_ERROR(check_roles(messages, 0, /*strict=*/true));
  if (messages.back().role != (continue_last ? "assistant" : "user"))
    return role_error(messages.size() - 1, continue_last
                                               ? "the message to continue must be the assistant's"
                                               : "the last message must be the user's");
  std::vector<std::int32_t> ids;
  Renderer out(*impl_, ids, nullptr);
  if (impl_->cuts) {
    QUIRE_ASSIGN_OR_RETURN(const auto cut, impl_->own->cut(std::nullopt, s.intro, s.question_open,
                                                           messages, {}, continue_last));
    out.marked(cut.after);
    out.flush();
    return ids;
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (m.role == "assistant") {
      out.markup(s.documents_in_turn ? s.assistant_open : s.document_generation);
      if (s.family == PromptFamily::kPlain) out.content(" ");
      put_answer(s, m.content, false, false, out);
      if (!continue_last || i + 1 < messages.size()) out.markup(s.assistant_close);
      continue;
    }
    if (s.documents_in_turn && i > 0) {
      out.markup(s.between_turns);
      out.markup(s.user_open);
    } else {
      out.markup(s.question_open);
    }
    out.content(trimmed(m.content, s.trim_user));
    out.markup(s.documents_in_turn ? s.user_close : s.question_close);
  }
  if (!continue_last) out.markup(s.documents_in_turn ? s.generation : s.document_generation);
  out.flush();
  return ids;
}

Result<AroundDocuments> PromptFormat::around_documents(std::optional<std::string_view> system,
                                                       std::span<const ChatMessage> messages,
                                                       std::string_view tools,
                                                       bool continue_last) const {
  const PromptSyntax& s = impl_->syntax;
  if (!renders_tools(/*with_documents=*/true))
    return Status::invalid("tools", "this model's chat template has no place for tools");
  if (messages.empty()) return Status::invalid("messages", "at least one message is needed");
  if (messages.front().role != "user")
    return role_error(0, "the first message must be the user's, as documents stand in its turn");
  QUIRE_ASSIGN_OR_RETURN(
      const auto cut, impl_->tool_template()->cut(system, s.intro, s.question_open, messages, tools,
                                                  continue_last));
  AroundDocuments around;
  around.before = whole_ids(*impl_, cut.before);
  Renderer out(*impl_, around.after, nullptr);
  out.marked(cut.after);
  out.flush();
  return around;
}

Result<std::vector<std::int32_t>> PromptFormat::chat(std::span<const ChatMessage> messages,
                                                     bool add_generation_prompt,
                                                     std::string_view tools,
                                                     bool continue_last) const {
  const PromptSyntax& s = impl_->syntax;
  if (messages.empty()) return Status::invalid("messages", "at least one message is needed");
  if (continue_last && messages.back().role != "assistant")
    return role_error(messages.size() - 1, "the message to continue must be the assistant's");
  const bool more = !tools.empty() || (impl_->own && needs_template(messages));
  if (more && !impl_->own) {
    return Status::invalid(
        "tools",
        "the prompt format " + std::string(prompt_family_name(s.family)) +
            " has no tools; only a model's own chat template does (model.prompt_format = auto)");
  }
  if (more || impl_->rendered()) {
    const bool other = impl_->own_tools && more;
    const TemplatePrompt& own = other ? *impl_->own_tools : *impl_->own;
    QUIRE_ASSIGN_OR_RETURN(const jinja::Text text,
                           own.render(messages, add_generation_prompt, tools, continue_last));
    if (messages[0].role == "system" && !own.shows_system() && !messages[0].content.empty())
      return role_error(0, "this model's chat template has no place for a system message");
    return whole_ids(*impl_, text);
  }
  std::optional<std::string_view> system;
  if (messages[0].role == "system") system = messages[0].content;
  const std::size_t first = system ? 1 : 0;
  if (system && s.system_place == SystemPlace::kNowhere) {
    return role_error(0, "this model (prompt format " + std::string(prompt_family_name(s.family)) +
                             ") has no system message");
  }
  const bool strict = s.family == PromptFamily::kLlama2 || s.family == PromptFamily::kMistral ||
                      s.family == PromptFamily::kQuire;
  QUIRE_RETURN_IF_ERROR(check_roles(messages, first, strict));
  if (!system && s.default_system) system = *s.default_system;
  std::size_t last_user = first;
  for (std::size_t i = first; i < messages.size(); ++i) {
    if (messages[i].role == "user") last_user = i;
  }
  const std::size_t system_at = s.system_place == SystemPlace::kLastUserTurn ? last_user : first;
  std::vector<std::int32_t> ids;
  Renderer out(*impl_, ids, nullptr);
  begin(*impl_, out);
  if (system && s.system_place == SystemPlace::kOwnTurn) put_system(s, *system, out);
  for (std::size_t i = first; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (m.role == "assistant") {
      out.markup(s.assistant_open);
      put_answer(s, m.content, i > last_user, i + 1 == messages.size(), out);
      if (!continue_last || i + 1 < messages.size()) out.markup(s.assistant_close);
      continue;
    }
    if (i > first) out.markup(s.between_turns);
    out.markup(s.user_open);
    const bool system_here = system && i == system_at && s.system_place != SystemPlace::kOwnTurn;
    if (system_here) put_system(s, *system, out);
    // A template that trims the user's turn trims it with the system message in front.
    out.content(system_here && s.trim_user ? right_trimmed(m.content)
                                           : trimmed(m.content, s.trim_user));
    out.markup(s.user_close);
  }
  if (add_generation_prompt && !continue_last) out.markup(s.generation);
  out.flush();
  return ids;
}

const std::vector<std::string>& PromptFormat::stop_strings() const {
  return impl_->syntax.stop_strings;
}
const std::vector<std::int32_t>& PromptFormat::stop_ids() const { return impl_->stop_ids; }
bool PromptFormat::supports_system() const {
  return impl_->rendered() ? impl_->own->shows_system()
                           : impl_->syntax.system_place != SystemPlace::kNowhere;
}
bool PromptFormat::supports_tools() const {
  return (impl_->own && impl_->own->shows_tools()) ||
         (impl_->own_tools && impl_->own_tools->shows_tools());
}
bool PromptFormat::renders_tools(bool with_documents) const {
  const TemplatePrompt* own = impl_->tool_template();
  if (own == nullptr || !own->tool_style()) return false;
  return !with_documents || (impl_->rendered() ? impl_->cuts : impl_->syntax.documents_in_turn);
}
ToolStyle PromptFormat::tool_style() const {
  const TemplatePrompt* own = impl_->tool_template();
  return own != nullptr && own->tool_style() ? *own->tool_style() : impl_->fallback_style;
}
PromptFamily PromptFormat::family() const { return impl_->syntax.family; }
const std::array<std::uint8_t, 32>& PromptFormat::digest() const { return impl_->digest; }

}  // namespace quire
