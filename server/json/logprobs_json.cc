#include "server/json/logprobs_json.h"

#include <algorithm>
#include <boost/json/object.hpp>
#include <iterator>

#include "base/index.h"
#include "engine/tokenizer/stream_decoder.h"

namespace quire {
namespace json = boost::json;
namespace {

json::array bytes_json(std::string_view bytes) {
  json::array out;
  for (const char c : bytes) out.emplace_back(static_cast<unsigned char>(c));
  return out;
}

json::object token_json(const Tokenizer& tokenizer, const TokenLogprob& t) {
  json::object o;
  o["token"] = token_text(tokenizer, t.token_id);
  o["logprob"] = static_cast<double>(t.logprob);
  o["bytes"] = bytes_json(tokenizer.token_bytes(t.token_id));
  return o;
}

}  // namespace

std::string token_text(const Tokenizer& tokenizer, std::int32_t id) {
  std::string out;
  Utf8Stream utf8;
  utf8.feed(tokenizer.token_bytes(id), out);
  utf8.flush(out);
  return out;
}

void AnswerLogprobs::add(TokenLogprobs logprobs) {
  const std::int32_t id = logprobs.chosen.token_id;
  const std::string_view bytes = has_text(tokenizer_, id) ? tokenizer_.token_bytes(id)
                                                          : std::string_view();
  begins_.push_back(end_);
  waiting_.push_back(std::move(logprobs));
  end_ += bytes.size();
  // The answer's text begins without the space that sentencepiece puts before every text.
  if (strip_space_ && !bytes.empty()) {
    strip_space_ = false;
    if (bytes.front() == ' ') --end_;
  }
}

std::vector<TokenLogprobs> AnswerLogprobs::take(std::size_t answer_bytes) {
  return take_first(
      to_size(std::lower_bound(begins_.begin(), begins_.end(), answer_bytes) - begins_.begin()));
}

std::vector<TokenLogprobs> AnswerLogprobs::finish(std::size_t answer_bytes, bool stop_text) {
  if (!stop_text) return take_first(waiting_.size());
  std::size_t count = 0;
  while (count < waiting_.size() &&
         (count + 1 < begins_.size() ? begins_[count + 1] : end_) <= answer_bytes)
    ++count;
  return take_first(count);
}

std::vector<TokenLogprobs> AnswerLogprobs::take_first(std::size_t count) {
  const auto n = static_cast<std::ptrdiff_t>(count);
  std::vector<TokenLogprobs> out(std::make_move_iterator(waiting_.begin()),
                                 std::make_move_iterator(waiting_.begin() + n));
  waiting_.erase(waiting_.begin(), waiting_.begin() + n);
  begins_.erase(begins_.begin(), begins_.begin() + n);
  return out;
}

json::array logprobs_json(const Tokenizer& tokenizer, std::span<const TokenLogprobs> logprobs) {
  json::array out;
  for (const TokenLogprobs& l : logprobs) {
    json::object o = token_json(tokenizer, l.chosen);
    json::array top;
    for (const TokenLogprob& t : l.top) top.push_back(token_json(tokenizer, t));
    o["top_logprobs"] = std::move(top);
    out.push_back(std::move(o));
  }
  return out;
}

}  // namespace quire
