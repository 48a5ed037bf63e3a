/// Finds the calls of functions in a model's answer while it is generated.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/tools.h"

namespace quire {

/// One piece of an answer: text, the beginning of a call (name is set), or more of its arguments.
struct ToolEvent {
  enum class Kind : unsigned char { kText, kCall, kArguments };
  Kind kind = Kind::kText;
  std::string text;       ///< text of the answer, the function's name, or a piece of the arguments
  std::size_t index = 0;  ///< which call, from 0
};

/// ToolParser takes an answer piece by piece. The events of an answer do not depend on where it was
/// cut, except that text and arguments may come in other pieces.
///
/// Text that looked like a call and turns out to be none is text of the answer. Once a call's name
/// was read the call stands, and its arguments are what the model wrote, valid or not. White space
/// next to calls belongs to no text, nor do brackets that close too much.
///
/// Threads: one at a time. The work is linear in the answer's length.
class ToolParser {
 public:
  /// `names`: the functions there are; where calls have no markers (kLlama3), JSON that names none
  /// of these is text. Calls after the first `max_calls` are left out. `choice`: whether the answer
  /// was free. If calls were required, a call that breaks off before its name is left out too; else
  /// it is text.
  ToolParser(ToolStyle style, std::vector<std::string> names, std::size_t max_calls = 128,
             ToolChoice choice = ToolChoice::kAuto);

  void push(std::string_view text, std::vector<ToolEvent>& out);
  /// Ends the answer. Nothing may follow.
  void finish(std::vector<ToolEvent>& out);

  std::size_t num_calls() const { return calls_; }

 private:
  /// Where the next byte stands.
  enum class At : unsigned char {
    kText,       ///< outside of calls
    kOpening,    ///< behind a marker, before a list, an object or a bare name
    kBareName,   ///< kMistral: in a name that stands before its arguments without quotes
    kList,       ///< in a list, before an object or its end
    kObject,     ///< in an object, before a key or its end
    kKey,        ///< in a key
    kColon,      ///< behind a key
    kValue,      ///< before a value
    kName,       ///< in the JSON text that is the function's name
    kArguments,  ///< in the arguments
    kSkipped     ///< in a value that nobody needs
  };
  using Events = std::vector<ToolEvent>;

  void step(char c, Events& out);
  void text_step(char c, Events& out);
  void opening_step(char c, Events& out);
  void bare_name_step(char c, Events& out);
  void list_step(char c, Events& out);
  void object_step(char c, Events& out);
  void value_step(char c, Events& out);
  void inside_step(char c, Events& out);

  void begin_block(std::string_view marker);
  void begin_object(char c);
  void begin_value(char c);
  /// Takes a byte of the value in work. True: it was its last.
  bool value_ends(char c);
  void end_value(Events& out);
  void end_object(Events& out);
  void begin_call(Events& out);
  void add_arguments(std::string_view text, Events& out);
  /// The bytes since the block began are no call: they are text, or the rest of a call that stands.
  void give_up(Events& out);
  /// Gives up at `c`, which an object cannot have there.
  void break_off(char c, Events& out);
  void leave_block();
  void put_text(char c, Events& out);
  void say(std::string_view text, Events& out);

  const ToolStyle style_;
  const std::vector<std::string> names_;
  const std::size_t max_calls_;
  const ToolChoice choice_;
  const std::string_view open_, close_;  ///< markers; empty: none

  At at_ = At::kText;
  bool plain_ = false;       ///< kLlama3: the answer is text, whatever follows
  bool after_call_ = false;  ///< no text has followed the last call
  bool in_block_ = false;    ///< no closing marker has followed the last call
  bool in_list_ = false;
  std::size_t calls_ = 0;
  std::string held_;    ///< what may be a marker
  std::string spaces_;  ///< white space that belongs to the text only if more text follows
  std::string raw_;     ///< what is text unless a call is found

  // The object in work.
  std::size_t nested_ = 0;  ///< how many objects called "function" it stands in
  bool emitted_ = false, dropped_ = false;
  bool has_arguments_ = false, arguments_emitted_ = false, bare_ = false;
  std::string key_, value_;
  std::string waiting_;  ///< arguments read before the name

  // The value in work.
  std::size_t depth_ = 0;
  bool in_string_ = false, escaped_ = false, scalar_ = false, quoted_ = false;
};

}  // namespace quire
