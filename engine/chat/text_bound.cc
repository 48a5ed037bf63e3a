#include "engine/chat/text_bound.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::size_t kPieceBytes = 16 << 10;
/// Cutting a text adds at most about this many tokens at each cut.
constexpr std::int64_t kTokensACut = 8;
/// Texts of fewer bytes for each token of the bound are cheap to tokenize whole.
constexpr std::uint64_t kCheapBytes = 4;

/// Returns the length of the first piece: it ends between characters, and before a space if one is
/// near.
std::size_t piece_of(std::string_view text) {
  constexpr std::size_t kNear = 256;
  if (text.size() <= kPieceBytes) return text.size();
  const std::size_t space = text.rfind(' ', kPieceBytes);
  if (space != std::string_view::npos && space > kPieceBytes - kNear) return space;
  std::size_t end = kPieceBytes;
  while (end > kPieceBytes - 4 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) --end;
  return end;
}

/// Takes pieces from the front of a text, and says how many tokens each has, rounded down.
class Pieces {
 public:
  Pieces(const Tokenizer& tokenizer, std::string_view text) : tokenizer_(tokenizer), text_(text) {}
  bool empty() const { return text_.empty(); }
  std::size_t left() const { return text_.size(); }
  std::int64_t take() {
    const std::string_view piece = text_.substr(0, piece_of(text_));
    if (piece != counted_) {
      counted_ = piece;
      tokens_ = std::max<std::int64_t>(0, count_of(tokenizer_.encode(piece)) - kTokensACut);
    }
    text_.remove_prefix(piece.size());
    return tokens_;
  }

 private:
  const Tokenizer& tokenizer_;
  std::string_view text_;
  std::string_view counted_;  // the piece before: a run of one character has equal ones
  std::int64_t tokens_ = 0;
};

bool is_cheap(std::uint64_t bytes, std::int64_t most_tokens) {
  return bytes <= static_cast<std::uint64_t>(most_tokens) * kCheapBytes;
}

}  // namespace

std::string_view beginning_of(const Tokenizer& tokenizer, std::string_view text,
                              std::int64_t most_tokens) {
  if (most_tokens <= 0 || is_cheap(text.size(), most_tokens)) return text;
  Pieces pieces(tokenizer, text);
  for (std::int64_t tokens = 0; tokens < most_tokens && !pieces.empty();) tokens += pieces.take();
  return text.substr(0, text.size() - pieces.left());
}

std::size_t longest_token_bytes(const Tokenizer& tokenizer) {
  static std::mutex mu;
  static std::map<std::array<std::uint8_t, 32>, std::size_t> known;  // by digest; guarded by mu
  const std::lock_guard lock(mu);
  const auto [it, fresh] = known.try_emplace(tokenizer.digest(), 1);
  for (std::int32_t id = 0; fresh && id < tokenizer.vocab_size(); ++id)
    it->second = std::max(it->second, tokenizer.token_bytes(id).size());
  return it->second;
}

std::optional<TextExcess> TextBound::add(std::string_view text) {
  if (most_tokens_ <= 0) return std::nullopt;
  bytes_ += text.size();
  const auto most = static_cast<std::uint64_t>(most_tokens_);
  const std::uint64_t longest = longest_token_bytes(tokenizer_);
  TextExcess excess{bytes_, most * longest, most_tokens_};
  if (excess.bytes > excess.most_bytes) {
    excess.least_tokens = static_cast<std::int64_t>((bytes_ + longest - 1) / longest);
    return excess;
  }
  if (is_cheap(bytes_, most_tokens_)) return std::nullopt;
  for (Pieces pieces(tokenizer_, text); !pieces.empty();) {
    tokens_ += pieces.take();
    if (tokens_ > most_tokens_) {
      excess.least_tokens = tokens_;
      return excess;
    }
  }
  return std::nullopt;
}

}  // namespace quire
