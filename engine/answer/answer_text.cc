#include "engine/answer/answer_text.h"

#include <algorithm>

namespace quire {

bool StopMatcher::feed(std::string_view text, std::string& out) {
  held_ += text;
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t at = held_.find(stop);
    if (at >= first) continue;
    first = at;
    completed_ = stop;
  }
  if (first != std::string::npos) {
    out.append(held_, 0, first);
    held_.clear();
    return true;
  }
  std::size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopMatcher::flush(std::string& out) {
  out += held_;
  held_.clear();
}

std::string AnswerText::push(std::int32_t id, bool may_stop) {
  std::string out;
  if (!may_stop) return decoder_.push(id);
  if (!stopped_) stopped_ = stops_.feed(decoder_.push(id), out);
  return out;
}

std::string AnswerText::finish() {
  std::string out;
  if (stopped_) return out;
  stopped_ = stops_.feed(decoder_.finish(), out);
  if (!stopped_) stops_.flush(out);
  return out;
}

}  // namespace quire
