/// Log probabilities of an answer's tokens, as replies show them.
#pragma once

#include <boost/json/array.hpp>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "engine/sample/sampler.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

/// Which tokens' log probabilities go with which piece of an answer's text: those whose first byte
/// lies in it. Tokens behind the answer's end (the rest of a stop string) go with none.
class AnswerLogprobs {
 public:
  /// The tokenizer must outlive it.
  explicit AnswerLogprobs(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), strip_space_(tokenizer.strips_first_space()) {}
  void add(TokenLogprobs logprobs);
  /// The tokens, not taken before, that begin within the first `answer_bytes` bytes of the answer.
  std::vector<TokenLogprobs> take(std::size_t answer_bytes);

 private:
  const Tokenizer& tokenizer_;
  bool strip_space_;
  std::size_t end_ = 0;              ///< bytes of all tokens added
  std::vector<std::size_t> begins_;  ///< of waiting_
  std::vector<TokenLogprobs> waiting_;
};

/// A token's bytes as text; what is no UTF-8 becomes U+FFFD.
std::string token_text(const Tokenizer& tokenizer, std::int32_t id);
/// [{"token","logprob","bytes","top_logprobs":[{"token","logprob","bytes"}]}]
boost::json::array logprobs_json(const Tokenizer& tokenizer,
                                 std::span<const TokenLogprobs> logprobs);

}  // namespace quire
