/// Replies of the OpenAI-compatible endpoints.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sample/sampler.h"
#include "engine/tokenizer/stream_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/reply/query_record.h"

namespace quire {

enum class OpenAiKind : std::uint8_t { kChat, kCompletion };

/// Tells where the tokens of one answer begin in its text, as plain completions report it, which
/// continue their prompt. Threads: one at a time.
class TextOffsets {
 public:
  /// The tokenizer must outlive it.
  explicit TextOffsets(const Tokenizer& tokenizer)
      : decoder_(tokenizer, false, {}, /*continues=*/true) {}
  /// Returns the characters before the answer's next token. One that begins inside a character
  /// begins with it.
  std::size_t next(std::int32_t token_id);

 private:
  StreamDecoder decoder_;
  std::size_t characters_ = 0;
};

/// Builds the objects of one request's reply. The tokenizer must outlive it. It is immutable.
/// Threads: any.
class OpenAiFormat {
 public:
  /// `first` is the record of the first choice, which gives the reply its id and time.
  /// `fingerprint` is the loaded model's.
  OpenAiFormat(OpenAiKind kind, const QueryRecord& first, std::string fingerprint,
               const Tokenizer& tokenizer);

  /// Returns the choice that begins a stream of that index: the role (chat) and no text.
  boost::json::object opening_choice(std::size_t index) const;
  /// Returns a choice with a piece of text. `offsets` are the choice's own; a chat needs none.
  boost::json::object delta_choice(std::size_t index, std::string_view text,
                                   std::span<const TokenLogprobs> logprobs,
                                   TextOffsets* offsets) const;
  /// Returns what delta_choice() needs for a choice whose stream begins.
  TextOffsets text_offsets() const { return TextOffsets(tokenizer_); }
  /// Returns a choice with a piece of a call of a tool: with `begins` its id and name, else more of
  /// its arguments.
  boost::json::object call_choice(std::size_t index, std::size_t call_index, const ToolCall& call,
                                  bool begins, std::string_view arguments,
                                  std::span<const TokenLogprobs> logprobs) const;
  /// Returns the choice that ends a stream of that index.
  boost::json::object closing_choice(std::size_t index, const QueryRecord& record) const;
  /// Returns a choice of a non-streamed reply. `logprobs` is null if they were not requested.
  boost::json::object whole_choice(std::size_t index, const QueryRecord& record,
                                   const std::vector<TokenLogprobs>* logprobs) const;

  /// Returns a chunk of a stream with these choices and `usage` null.
  boost::json::object chunk(boost::json::array choices) const;
  /// Returns the non-streamed reply.
  boost::json::object whole(boost::json::array choices) const;

 private:
  boost::json::object envelope(std::string_view object, boost::json::array choices) const;
  boost::json::value logprobs_value(const std::vector<TokenLogprobs>* logprobs) const;
  boost::json::object completion_logprobs(std::span<const TokenLogprobs> logprobs,
                                          TextOffsets& offsets) const;

  const OpenAiKind kind_;
  const std::string id_, model_, fingerprint_;
  const std::int64_t created_;
  const Tokenizer& tokenizer_;
};

/// Returns the usage of all choices: each prompt counted once, every answer counted. Each prompt
/// has `samples` choices, in order.
boost::json::object openai_usage_json(std::span<const std::shared_ptr<QueryRecord>> records,
                                      std::size_t samples);

/// Returns the calls of an answer, as OpenAI's API has them.
boost::json::array tool_calls_json(std::span<const ToolCall> calls);

}  // namespace quire
