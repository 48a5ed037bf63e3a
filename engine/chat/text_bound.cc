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

}  // namespace

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
  if (bytes_ <= most * kCheapBytes) return std::nullopt;
  std::string_view counted;  // the piece before: a run of one character has equal ones
  std::int64_t tokens = 0;
  while (!text.empty()) {
    const std::size_t n = piece_of(text);
    if (text.substr(0, n) != counted) {
      counted = text.substr(0, n);
      tokens = std::max<std::int64_t>(0, count_of(tokenizer_.encode(counted)) - kTokensACut);
    }
    tokens_ += tokens;
    if (tokens_ > most_tokens_) {
      excess.least_tokens = tokens_;
      return excess;
    }
    text.remove_prefix(n);
  }
  return std::nullopt;
}

}  // namespace quire
