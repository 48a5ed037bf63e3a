#include "server/http/chunk_decoder.h"

#include <algorithm>

#include "base/index.h"

namespace quire {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; }

}  // namespace

/// Parses the size line: hex digits, then nothing or extensions after a semicolon.
bool ChunkDecoder::begin_chunk() {
  std::size_t i = 0;
  left_ = 0;
  for (; i < line_.size() && hex_digit(line_[i]) >= 0; ++i) {
    if (i >= 15) return false;  // more than any body could have
    left_ = left_ * 16 + static_cast<std::uint64_t>(hex_digit(line_[i]));
  }
  if (i == 0) return false;
  while (i < line_.size() && (line_[i] == ' ' || line_[i] == '\t')) ++i;
  return i == line_.size() || line_[i] == ';';
}

void ChunkDecoder::end_of_line() {
  switch (state_) {
    case State::kSize:
      if (!begin_chunk())
        state_ = State::kFailed;
      else
        state_ = left_ > 0 ? State::kData : State::kTrailer;
      break;
    case State::kDataEnd:
      state_ = line_.empty() ? State::kSize : State::kFailed;
      break;
    case State::kTrailer:
      if (line_.empty())
        state_ = State::kDone;
      else if (line_.find(':') == std::string::npos || line_.front() == ' ' ||
               line_.front() == '\t')
        state_ = State::kFailed;
      break;
    default:
      state_ = State::kFailed;
  }
  line_.clear();
}

std::size_t ChunkDecoder::feed(std::string_view data, std::string& body) {
  std::size_t used = 0;
  while (used < data.size() && !done() && !failed()) {
    if (state_ == State::kData) {
      const auto n = to_size(std::min<std::uint64_t>(left_, data.size() - used));
      body.append(data.substr(used, n));
      used += n;
      left_ -= n;
      if (left_ == 0) state_ = State::kDataEnd;
      continue;
    }
    const char c = data[used++];
    if (cr_) {
      cr_ = false;
      if (c == '\n')
        end_of_line();
      else
        state_ = State::kFailed;  // a bare CR
    } else if (c == '\r') {
      cr_ = true;
    } else if (is_control(c) || (state_ == State::kDataEnd)) {
      state_ = State::kFailed;
    } else {
      line_.push_back(c);
      if (line_.size() > kMaxLineBytes ||
          (state_ == State::kTrailer && ++trailer_bytes_ > kMaxTrailerBytes))
        state_ = State::kFailed;
    }
  }
  return used;
}

}  // namespace quire
