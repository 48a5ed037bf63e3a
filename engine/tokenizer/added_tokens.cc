#include "engine/tokenizer/added_tokens.h"

#include <algorithm>

namespace quire::tokenizer_internal {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         (static_cast<unsigned char>(c) & 0x80) != 0;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word(text[begin - 1])) && (end == text.size() || !is_word(text[end]));
}

}  // namespace

bool AddedToken::control() const {
  if (special) return true;
  if (text.size() < 3) return false;
  return (text.front() == '<' && text.back() == '>') || (text.front() == '[' && text.back() == ']');
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.text.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.text.size() > b.text.size();
  });
  for (std::uint32_t i = 0; i < tokens_.size(); ++i) {
    const auto lead = static_cast<unsigned char>(tokens_[i].text[0]);
    by_lead_[lead].push_back(i);
    if (!tokens_[i].control()) {
      open_by_lead_[lead].push_back(i);
      any_open_ = true;
    }
  }
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from,
                                                    bool parse_control) const {
  if (tokens_.empty() || (!parse_control && !any_open_)) return std::nullopt;
  const auto& by_lead = parse_control ? by_lead_ : open_by_lead_;
  for (std::size_t at = from; at < text.size(); ++at) {
    for (const std::uint32_t i : by_lead[static_cast<unsigned char>(text[at])]) {
      const AddedToken& token = tokens_[i];
      if (text.compare(at, token.text.size(), token.text) != 0) continue;
      std::size_t begin = at, end = at + token.text.size();
      if (token.single_word && !stands_alone(text, begin, end)) continue;
      while (token.lstrip && begin > from && is_space(text[begin - 1])) --begin;
      while (token.rstrip && end < text.size() && is_space(text[end])) ++end;
      return Match{begin, end, token.id};
    }
  }
  return std::nullopt;
}

}  // namespace quire::tokenizer_internal
