/// Log probabilities of an answer's tokens, in the form of the replies.
#pragma once

#include <boost/json/array.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/sample/sampler.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// AnswerLogprobs assigns tokens' log probabilities to pieces of an answer's text: a token belongs
/// to the piece that holds its first byte. Tokens after the answer's end (the rest of a stop
/// string) belong to none.
class AnswerLogprobs {
 public:
  /// The tokenizer must outlive this object. `continues`: as in SamplingOptions.
  AnswerLogprobs(const Tokenizer& tokenizer, bool continues)
      : tokenizer_(tokenizer), strip_space_(tokenizer.strips_first_space() && !continues) {}
  void add(TokenLogprobs logprobs);
  /// Returns the tokens not yet taken that begin within the first `answer_bytes` bytes of the
  /// answer.
  std::vector<TokenLogprobs> take(std::size_t answer_bytes);
  /// Returns the tokens not yet taken of an answer that ended after `answer_bytes` bytes: its last
  /// ones that have no text. `stop_text`: the tokens of a stop string follow, and stay.
  std::vector<TokenLogprobs> finish(std::size_t answer_bytes, bool stop_text);

 private:
  std::vector<TokenLogprobs> take_first(std::size_t count);

  const Tokenizer& tokenizer_;
  bool strip_space_;
  std::size_t end_ = 0;              ///< total bytes of the tokens added
  std::vector<std::size_t> begins_;  ///< first byte of each token in waiting_
  std::vector<TokenLogprobs> waiting_;
};

/// Returns a token's bytes as text; invalid UTF-8 becomes U+FFFD.
std::string token_text(const Tokenizer& tokenizer, std::int32_t id);
/// Returns [{"token","logprob","bytes","top_logprobs":[{"token","logprob","bytes"}]}].
boost::json::array logprobs_json(const Tokenizer& tokenizer,
                                 std::span<const TokenLogprobs> logprobs);

}  // namespace quire
