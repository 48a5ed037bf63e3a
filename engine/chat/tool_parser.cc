#include "engine/chat/tool_parser.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;

constexpr std::string_view kHermesOpen = "<tool_call>", kHermesClose = "</tool_call>";
constexpr std::string_view kMistralOpen = "[TOOL_CALLS]", kLlamaOpen = "<|python_tag|>";
constexpr std::size_t kMaxBareName = 256;

std::string_view opening_of(ToolStyle style) {
  switch (style) {
    case ToolStyle::kHermes:
    case ToolStyle::kSmolLm:
      return kHermesOpen;
    case ToolStyle::kLlama3:
      return kLlamaOpen;
    case ToolStyle::kMistral:
      return kMistralOpen;
  }
  return {};
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/// Reads a JSON string with its quotes; none: it is no valid one.
std::optional<std::string> unquoted(std::string_view text) {
  json::value value;
  if (parse_json(text, value) || !value.is_string()) return std::nullopt;
  return std::string(value.get_string());
}

}  // namespace

ToolParser::ToolParser(ToolStyle style, std::vector<std::string> names, std::size_t max_calls,
                       ToolChoice choice)
    : style_(style),
      names_(std::move(names)),
      max_calls_(max_calls),
      choice_(choice),
      open_(opening_of(style)),
      close_(open_ == kHermesOpen ? kHermesClose : std::string_view()) {}

void ToolParser::push(std::string_view text, Events& out) {
  for (const char c : text) step(c, out);
}

void ToolParser::step(char c, Events& out) {
  switch (at_) {
    case At::kText:
      return text_step(c, out);
    case At::kOpening:
      return opening_step(c, out);
    case At::kBareName:
      return bare_name_step(c, out);
    case At::kList:
      return list_step(c, out);
    case At::kObject:
    case At::kKey:
    case At::kColon:
      return object_step(c, out);
    case At::kValue:
      return value_step(c, out);
    case At::kName:
    case At::kArguments:
    case At::kSkipped:
      return inside_step(c, out);
  }
}

void ToolParser::say(std::string_view text, Events& out) {
  if (text.empty()) return;
  if (!out.empty() && out.back().kind == ToolEvent::Kind::kText) {
    out.back().text += text;
    return;
  }
  out.push_back({ToolEvent::Kind::kText, std::string(text)});
}

void ToolParser::put_text(char c, Events& out) {
  if (is_space(c)) {
    if (!after_call_) spaces_.push_back(c);
    return;
  }
  after_call_ = in_block_ = false;
  spaces_.push_back(c);
  say(spaces_, out);
  spaces_.clear();
}

void ToolParser::text_step(char c, Events& out) {
  if (plain_) return say(std::string_view(&c, 1), out);
  if (style_ == ToolStyle::kLlama3 && held_.empty()) {
    if (is_space(c)) return put_text(c, out);
    if (after_call_ && c == ';') return;
    if (c == '{') {
      raw_ = spaces_;
      spaces_.clear();
      return begin_object(c);
    }
  }
  // Some models write several calls between one pair of markers.
  if (in_block_ && held_.empty() && c == '{') return begin_object(c);
  // Small models close a call more often than they opened it.
  if (in_block_ && held_.empty() && (c == '}' || c == ']')) return;
  held_.push_back(c);
  const auto may_be = [this](std::string_view marker) { return marker.starts_with(held_); };
  while (!held_.empty() && !may_be(open_) && !(after_call_ && may_be(close_))) {
    const char first = held_.front();
    held_.erase(0, 1);
    put_text(first, out);
    // Without markers, what begins as text stays text.
    if (style_ == ToolStyle::kLlama3 && !is_space(first)) {
      plain_ = true;
      say(std::exchange(held_, {}), out);
    }
  }
  if (held_.empty()) return;
  if (held_ == close_) {
    held_.clear();
    in_block_ = false;
  } else if (held_ == open_) {
    held_.clear();
    begin_block(open_);
  }
}

void ToolParser::begin_block(std::string_view marker) {
  raw_ = std::exchange(spaces_, {}) + std::string(marker);
  in_list_ = in_block_ = false;
  at_ = At::kOpening;
}

void ToolParser::leave_block() {
  at_ = At::kText;
  raw_.clear();
  in_list_ = false;
}

void ToolParser::give_up(Events& out) {
  const bool call = emitted_;
  if (call && !arguments_emitted_) add_arguments("{}", out);
  emitted_ = false;
  const std::string text = std::exchange(raw_, {});
  leave_block();
  // The call stands; what follows it is dropped up to here.
  if (call) return;
  in_block_ = after_call_ = false;
  if (style_ == ToolStyle::kLlama3) plain_ = true;
  say(text, out);
}

void ToolParser::opening_step(char c, Events& out) {
  raw_.push_back(c);
  if (is_space(c)) return;
  if (c == '[' && style_ != ToolStyle::kLlama3) {
    in_list_ = true;
    at_ = At::kList;
  } else if (c == '{') {
    raw_.pop_back();
    begin_object(c);
  } else if (style_ == ToolStyle::kMistral) {
    at_ = At::kBareName;
    key_.assign(1, c);
  } else {
    give_up(out);
  }
}

void ToolParser::bare_name_step(char c, Events& out) {
  raw_.push_back(c);
  if (c != '{') {
    key_.push_back(c);
    if (key_.size() > kMaxBareName || c == '\n') give_up(out);
    return;
  }
  // "name", or "name[CALL_ID]id[ARGS]", where the markers may be tokens.
  std::string name = key_.substr(0, key_.find('['));
  while (!name.empty() && is_space(name.back())) name.pop_back();
  if (name.empty()) return give_up(out);
  emitted_ = dropped_ = has_arguments_ = arguments_emitted_ = false;
  waiting_.clear();
  bare_ = true;
  value_ = std::move(name);
  begin_call(out);
  key_ = "arguments";
  at_ = At::kValue;
  value_step(c, out);
}

void ToolParser::list_step(char c, Events& out) {
  if (c == '{') return begin_object(c);
  if (!raw_.empty()) raw_.push_back(c);
  if (is_space(c) || c == ',') return;
  if (c == ']' && !raw_.empty()) {
    // An empty list calls nothing.
    after_call_ = in_block_ = true;
    return leave_block();
  }
  if (raw_.empty()) {
    leave_block();
    if (c != ']') text_step(c, out);
    return;
  }
  give_up(out);
}

void ToolParser::begin_object(char c) {
  raw_.push_back(c);
  nested_ = 0;
  emitted_ = dropped_ = has_arguments_ = arguments_emitted_ = bare_ = false;
  value_.clear();
  waiting_.clear();
  at_ = At::kObject;
}

void ToolParser::object_step(char c, Events& out) {
  if (!emitted_) raw_.push_back(c);
  if (at_ == At::kKey) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      at_ = At::kColon;
      const bool expected = key_ == "name" || key_ == "arguments" || key_ == "parameters" ||
                            key_ == "function" || key_ == "type" || key_ == "id";
      if (style_ == ToolStyle::kLlama3 && !expected && !emitted_) give_up(out);
      return;
    }
    key_.push_back(c);
    return;
  }
  if (is_space(c)) return;
  if (at_ == At::kColon) {
    if (c != ':') return break_off(c, out);
    at_ = At::kValue;
    return;
  }
  if (c == ',') return;
  if (c == '"') {
    key_.clear();
    escaped_ = false;
    at_ = At::kKey;
  } else if (c == '}') {
    end_object(out);
  } else {
    break_off(c, out);
  }
}

void ToolParser::break_off(char c, Events& out) {
  const bool call = emitted_;
  give_up(out);
  // The closing marker may follow where the object should have ended.
  if (call && close_.starts_with(c)) text_step(c, out);
}

void ToolParser::begin_value(char c) {
  depth_ = 0;
  in_string_ = escaped_ = false;
  scalar_ = c != '{' && c != '[' && c != '"';
  value_.clear();
}

void ToolParser::value_step(char c, Events& out) {
  if (is_space(c)) {
    if (!emitted_) raw_.push_back(c);
    return;
  }
  if (key_ == "function" && c == '{' && !emitted_ && nested_ == 0) {
    raw_.push_back(c);
    ++nested_;
    at_ = At::kObject;
    return;
  }
  const bool arguments = (key_ == "arguments" || key_ == "parameters") && !has_arguments_;
  begin_value(c);
  quoted_ = arguments && c == '"';
  has_arguments_ = has_arguments_ || arguments;
  at_ = arguments                                 ? At::kArguments
        : key_ == "name" && c == '"' && !emitted_ ? At::kName
                                                  : At::kSkipped;
  inside_step(c, out);
}

bool ToolParser::value_ends(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      return depth_ == 0;
    }
    return false;
  }
  if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    return --depth_ == 0;
  }
  return false;
}

void ToolParser::inside_step(char c, Events& out) {
  if (scalar_ && (c == ',' || c == '}' || c == ']' || is_space(c))) {
    end_value(out);
    return step(c, out);
  }
  if (!emitted_) raw_.push_back(c);
  if (at_ == At::kArguments && !quoted_)
    add_arguments(std::string_view(&c, 1), out);
  else if (at_ != At::kSkipped)
    value_.push_back(c);
  if (!scalar_ && value_ends(c)) end_value(out);
}

void ToolParser::end_value(Events& out) {
  const At ended = std::exchange(at_, At::kObject);
  if (ended == At::kName) {
    const auto name = unquoted(value_);
    const bool known = name && (style_ != ToolStyle::kLlama3 ||
                                std::find(names_.begin(), names_.end(), *name) != names_.end());
    if (!known || name->empty()) return give_up(out);
    value_ = *name;
    begin_call(out);
  } else if (ended == At::kArguments && quoted_) {
    add_arguments(unquoted(value_).value_or(value_), out);
  }
  if (bare_ && ended == At::kArguments) end_object(out);
}

void ToolParser::begin_call(Events& out) {
  emitted_ = true;
  raw_.clear();
  after_call_ = in_block_ = true;
  dropped_ = calls_ >= max_calls_;
  if (dropped_) return;
  out.push_back({ToolEvent::Kind::kCall, value_, calls_++});
  if (!waiting_.empty()) add_arguments(std::exchange(waiting_, {}), out);
}

void ToolParser::add_arguments(std::string_view text, Events& out) {
  if (!emitted_) {
    waiting_ += text;
    return;
  }
  if (dropped_ || text.empty()) return;
  arguments_emitted_ = true;
  if (!out.empty() && out.back().kind == ToolEvent::Kind::kArguments &&
      out.back().index == calls_ - 1) {
    out.back().text += text;
    return;
  }
  out.push_back({ToolEvent::Kind::kArguments, std::string(text), calls_ - 1});
}

void ToolParser::end_object(Events& out) {
  if (nested_ > 0) {
    --nested_;
    return;
  }
  if (!emitted_) return give_up(out);
  if (!arguments_emitted_) add_arguments("{}", out);
  emitted_ = false;
  if (in_list_)
    at_ = At::kList;
  else
    leave_block();
}

void ToolParser::finish(Events& out) {
  if (choice_ == ToolChoice::kRequired && !emitted_) {
    // What is held back can only be the beginning of a call.
    held_.clear();
    spaces_.clear();
    return leave_block();
  }
  if (at_ == At::kText) {
    if (!held_.empty()) after_call_ = false;
    if (!after_call_ || !held_.empty()) say(std::exchange(spaces_, {}) + held_, out);
    held_.clear();
    return;
  }
  if (at_ == At::kArguments && quoted_ && emitted_) add_arguments(value_, out);
  if (emitted_ && !arguments_emitted_) add_arguments("{}", out);
  if (emitted_ || raw_.empty()) return;
  if (style_ == ToolStyle::kLlama3) plain_ = true;
  say(std::exchange(raw_, {}), out);
  at_ = At::kText;
}

}  // namespace quire
