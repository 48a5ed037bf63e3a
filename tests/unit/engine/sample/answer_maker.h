/// Makes answers of a grammar from random logits.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sample/sampler.h"
#include "engine/sample/token_mask.h"

namespace quire::testing {

/// A vocabulary of every single byte and of longer pieces, so that tokens cross every border in
/// JSON.
class TestVocabulary {
 public:
  explicit TestVocabulary(bool strips_first_space = false) {
    for (int b = 0; b < 256; ++b) pieces_.emplace_back(1, static_cast<char>(b));
    for (const char* p :
         {"{\"",      "\":",   "\": ",     "\",",        "\", \"", "\"}",          "},",
          "[{",       "}]",    "]}",       "[[",         "]]",     "tru",          "e,",
          "true",     "false", "nul",      "null",       "10",     "0.5",          "-1",
          "1e",       " a",    "name",     "\\u",        "\\ud8",  "\\n",          "\xc3\xa9",
          "\xe2\x82", "\xac",  "\xf0\x9f", "\x98\x80\"", "\"a",    "a\"",          "\"\"",
          "{}",       "[]",    "  ",       "red",        "blue",   "{\"name\": \""})
      pieces_.emplace_back(p);
    views_.emplace_back();  // id 0 ends the answer like a special token
    for (const auto& p : pieces_) views_.emplace_back(p);
    trie_ = std::make_unique<TokenTrie>(views_, strips_first_space);
  }
  const TokenTrie& trie() const { return *trie_; }
  std::string_view bytes(std::int32_t id) const { return views_[static_cast<std::size_t>(id)]; }
  std::size_t size() const { return views_.size(); }
  std::int32_t id_of(std::string_view piece) const {
    for (std::size_t i = 1; i < views_.size(); ++i)
      if (views_[i] == piece) return static_cast<std::int32_t>(i);
    return -1;
  }

 private:
  std::vector<std::string> pieces_;
  std::vector<std::string_view> views_;
  std::unique_ptr<TokenTrie> trie_;
};

struct MadeAnswer {
  std::string text;
  bool complete = false;  ///< it ended within its tokens
  bool stuck = false;     ///< the grammar allowed nothing
  bool narrowed = false;  ///< a token was withheld for lack of room
};

enum class Room : bool { kIgnored, kMinded };

/// Samples tokens from random logits until the answer ends. Tokens that close something are made
/// likelier, because a random answer would nest forever.
inline MadeAnswer make_answer(const Grammar& grammar, const TestVocabulary& vocabulary,
                              std::uint64_t seed, int max_tokens, Room room = Room::kIgnored) {
  GrammarMatcher matcher(grammar, vocabulary.trie());
  SamplingOptions options;
  options.temperature = 1;
  options.seed = seed;
  Sampler sampler(options);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, 2);
  MadeAnswer out;
  std::vector<float> logits(vocabulary.size());
  for (int n = 0; n < max_tokens && !out.complete; ++n) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto bytes = vocabulary.bytes(static_cast<std::int32_t>(i));
      const bool closes = !bytes.empty() &&
                          (bytes.back() == '"' || bytes.back() == '}' || bytes.back() == ']');
      logits[i] = normal(rng) + (closes ? 6.0f : 0.0f);
    }
    const auto allowed = room == Room::kMinded ? matcher.allowed(max_tokens - n)
                                               : matcher.allowed();
    out.narrowed = out.narrowed || matcher.narrowed();
    std::vector<std::uint64_t> mask(allowed.begin(), allowed.end());
    if (matcher.complete()) mask[0] |= 1;
    const std::int32_t id = sampler.sample(logits, mask);
    if (id < 0) {
      out.stuck = true;
      break;
    }
    if (id == 0) {
      out.complete = true;
      break;
    }
    if (!matcher.advance(id)) {
      out.stuck = true;
      break;
    }
    out.text += vocabulary.bytes(id);
    out.complete = matcher.finished() || (n + 1 == max_tokens && matcher.complete());
  }
  return out;
}

/// Returns whether the whole text belongs to the grammar, read byte by byte.
inline bool accepts(const Grammar& grammar, const TestVocabulary& vocabulary,
                    std::string_view text) {
  GrammarMatcher matcher(grammar, vocabulary.trie());
  for (const char c : text)
    if (!matcher.advance(vocabulary.id_of(std::string_view(&c, 1)))) return false;
  return matcher.complete();
}

}  // namespace quire::testing
