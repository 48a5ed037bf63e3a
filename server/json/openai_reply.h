/// Replies of the OpenAI-compatible endpoints.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/json/query_codec.h"

namespace quire {

enum class OpenAiKind : std::uint8_t { kChat, kCompletion };

/// Builds the objects of one request's reply. Immutable: any thread. The tokenizer must outlive it.
class OpenAiFormat {
 public:
  /// `first`: the record of the first choice, of which the reply's id and time are made;
  /// `fingerprint`: of the loaded model.
  OpenAiFormat(OpenAiKind kind, const QueryRecord& first, std::string fingerprint,
               const Tokenizer& tokenizer);

  /// The choice that begins a stream of that index: the role (chat) and no text.
  boost::json::object opening_choice(std::size_t index) const;
  /// `text_begin`: characters of the answer before this piece, which plain completions count.
  boost::json::object delta_choice(std::size_t index, std::string_view text,
                                   std::span<const TokenLogprobs> logprobs,
                                   std::size_t text_begin) const;
  /// The choice that ends one.
  boost::json::object closing_choice(std::size_t index, const QueryRecord& record) const;
  /// A choice of a reply in one piece. `logprobs`: null where they were not asked for.
  boost::json::object whole_choice(std::size_t index, const QueryRecord& record,
                                   const std::vector<TokenLogprobs>* logprobs) const;

  /// A chunk of a stream with these choices and `usage` null.
  boost::json::object chunk(boost::json::array choices) const;
  /// The reply in one piece.
  boost::json::object whole(boost::json::array choices) const;

 private:
  boost::json::object envelope(std::string_view object, boost::json::array choices) const;
  boost::json::value logprobs_value(const std::vector<TokenLogprobs>* logprobs) const;
  boost::json::object completion_logprobs(std::span<const TokenLogprobs> logprobs,
                                          std::size_t text_begin) const;

  const OpenAiKind kind_;
  const std::string id_, model_, fingerprint_;
  const std::int64_t created_;
  const Tokenizer& tokenizer_;
};

/// Of all choices: each prompt counted once, every answer counted. `samples`: choices of each
/// prompt, in order.
boost::json::object openai_usage_json(std::span<const std::shared_ptr<QueryRecord>> records,
                                      std::size_t samples);

/// Unicode characters of a valid text.
std::size_t count_characters(std::string_view text);

}  // namespace quire
