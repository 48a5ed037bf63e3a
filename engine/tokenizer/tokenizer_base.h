/// What the tokenizers of all kinds share: the table of pieces, control tokens, identity.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/index.h"
#include "base/sha256.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire::tokenizer_internal {

constexpr std::int32_t kMaxVocabulary = 4 << 20;  ///< ids at and above it are taken for damage
constexpr std::size_t kMaxPieceBytes = 4096;

/// The bytes of every id. Ids may have holes.
class PieceTable {
 public:
  /// Sets the bytes of `id` (0 <= id < kMaxVocabulary).
  void set(std::int32_t id, std::string bytes, bool special);
  std::int32_t size() const { return static_cast<std::int32_t>(pieces_.size()); }
  bool known(std::int32_t id) const { return in_range(id) && pieces_[at(id)].known; }
  bool special(std::int32_t id) const { return in_range(id) && pieces_[at(id)].special; }
  std::string_view bytes(std::int32_t id) const {
    return in_range(id) ? std::string_view(pieces_[at(id)].bytes) : std::string_view();
  }
  /// Builds the way back from bytes to ids; where two ids have the same bytes, special ones and
  /// then lower ids win.
  void index();
  std::optional<std::int32_t> find(std::string_view bytes) const;

 private:
  struct Piece {
    std::string bytes;
    bool known = false, special = false;
  };
  bool in_range(std::int32_t id) const { return id >= 0 && id < size(); }

  std::vector<Piece> pieces_;
  std::unordered_map<std::string_view, std::int32_t> by_bytes_;  ///< views into pieces_
};

/// What the configuration files say beside the vocabulary.
struct TokenizerSettings {
  std::optional<std::int32_t> bos_id;
  std::vector<std::int32_t> eos_ids;
  bool add_bos = false;
  bool strips_first_space = false;
  bool space_after_special = false;
  std::string description;
};

/// Where encoding writes: spans only where they are asked for.
struct EncodeSink {
  std::vector<std::int32_t>& ids;
  std::vector<TokenSpan>* spans;

  void put(std::int32_t id, std::size_t begin, std::size_t end) {
    ids.push_back(id);
    if (spans != nullptr)
      spans->push_back({static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
  }
};

/// Finds added tokens in the text and leaves the rest to encode_plain().
class TokenizerBase : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text, Special special,
                                   Start start) const override;
  Encoding encode_with_offsets(std::string_view text, Special special, Start start) const override;
  std::vector<ControlSpan> find_controls(std::string_view text) const override;
  std::string_view token_bytes(std::int32_t id) const override { return pieces_.bytes(id); }
  bool is_special(std::int32_t id) const override { return pieces_.special(id); }
  std::optional<std::int32_t> token_id(std::string_view piece) const override {
    return pieces_.find(piece);
  }
  std::int32_t vocab_size() const override { return pieces_.size(); }
  std::optional<std::int32_t> bos_id() const override { return settings_.bos_id; }
  const std::vector<std::int32_t>& eos_ids() const override { return settings_.eos_ids; }
  bool add_bos() const override { return settings_.add_bos; }
  bool strips_first_space() const override { return settings_.strips_first_space; }
  bool space_after_special() const override { return settings_.space_after_special; }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::string_view description() const override { return settings_.description; }

 protected:
  TokenizerBase(PieceTable pieces, std::vector<AddedToken> added, TokenizerSettings settings);

  /// Appends the ids of `text` (no added tokens in it, not empty, maybe not valid UTF-8). Span k is
  /// base + its place in `text`. `space_first`: put the vocabulary's own space in front, if it has
  /// one.
  virtual void encode_plain(std::string_view text, std::size_t base, bool space_first,
                            EncodeSink& out) const = 0;
  /// Adds everything of the kind's own that changes ids.
  void finish_digest(Sha256& hash);

  const PieceTable& pieces() const { return pieces_; }

 private:
  void run(std::string_view text, Special special, Start start, EncodeSink& out) const;

  PieceTable pieces_;
  AddedTokens added_;
  TokenizerSettings settings_;
  std::array<std::uint8_t, 32> digest_{};
};

}  // namespace quire::tokenizer_internal
