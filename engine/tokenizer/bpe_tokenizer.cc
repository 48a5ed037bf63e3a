#include "engine/tokenizer/bpe_tokenizer.h"

#include <array>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>

#include "base/index.h"
#include "base/utf8.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pretokenizer.h"

namespace quire::tokenizer_internal {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581

/// GPT-2's printable stand-ins: code point -> byte, -1 where there is none.
const std::array<std::int16_t, 324>& byte_level_alphabet() {
  static const std::array<std::int16_t, 324> table = [] {
    std::array<std::int16_t, 324> t{};
    t.fill(-1);
    int next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                             byte >= 0xAE;
      t[at(printable ? byte : next++)] = static_cast<std::int16_t>(byte);
    }
    return t;
  }();
  return table;
}

std::string byte_piece(int byte) {
  constexpr char kHex[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kHex[byte >> 4], kHex[byte & 15], '>'};
}

/// The bytes a piece of a byte-fallback vocabulary adds to a text.
std::string text_of_fallback_piece(const std::string& piece,
                                   const std::unordered_map<std::string, int>& byte_pieces) {
  if (const auto it = byte_pieces.find(piece); it != byte_pieces.end())
    return std::string(1, static_cast<char>(it->second));
  std::string text;
  for (std::size_t i = 0; i < piece.size();) {
    if (piece.compare(i, kMetaSpace.size(), kMetaSpace) == 0) {
      text.push_back(' ');
      i += kMetaSpace.size();
    } else {
      text.push_back(piece[i++]);
    }
  }
  return text;
}

/// Ids of words seen before. Bounded: once full it keeps what it has.
class WordCache {
 public:
  bool get(std::string_view word, std::vector<std::int32_t>& ids) const {
    const Shard& shard = shard_of(word);
    const std::shared_lock lock(shard.mu);
    const auto it = shard.words.find(word);
    if (it == shard.words.end()) return false;
    ids.assign(it->second.begin(), it->second.end());
    return true;
  }
  void put(std::string_view word, const std::vector<std::int32_t>& ids) const {
    Shard& shard = shard_of(word);
    const std::unique_lock lock(shard.mu);
    if (shard.words.size() < kWordsPerShard) shard.words.emplace(std::string(word), ids);
  }
  static bool fits(std::string_view word) { return word.size() <= 32; }

 private:
  static constexpr std::size_t kWordsPerShard = 4096;
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  struct Shard {
    mutable std::shared_mutex mu;
    // Guarded by mu
    std::unordered_map<std::string, std::vector<std::int32_t>, Hash, std::equal_to<>> words;
  };
  Shard& shard_of(std::string_view word) const {
    return shards_[Hash()(word) >> 7 & (shards_.size() - 1)];
  }

  mutable std::array<Shard, 16> shards_;
};

class BpeTokenizer final : public TokenizerBase {
 public:
  BpeTokenizer(PieceTable pieces, BpeSpec spec, Pretokenizer pretokenizer,
               TokenizerSettings settings)
      : TokenizerBase(std::move(pieces), std::move(spec.added), std::move(settings)),
        spec_(std::move(spec)),
        model_(spec_.merges),
        pretokenizer_(std::move(pretokenizer)) {
    index_pieces();
    hash_everything();
    spec_.merges = {};
    spec_.pieces = {};
  }

 protected:
  void encode_plain(std::string_view text, std::size_t base, bool space_first,
                    EncodeSink& out) const override {
    while (!text.empty()) {
      const std::size_t valid = valid_utf8_prefix(text);
      if (valid > 0) encode_valid(text.substr(0, valid), base, space_first, out);
      std::size_t broken = valid;
      char32_t cp = 0;
      while (broken < text.size() && decode_utf8(text.substr(broken), cp) == 0) {
        const std::int32_t id = byte_ids_[static_cast<unsigned char>(text[broken])];
        if (id >= 0) out.put(id, base + broken, base + broken + 1);
        ++broken;
      }
      text.remove_prefix(broken);
      base += broken;
      space_first = false;
    }
  }

 private:
  /// Where encode_word() writes and what it reuses from word to word.
  struct Scratch {
    std::vector<std::string_view> words;
    std::vector<Symbol> symbols;
    std::vector<std::int32_t> ids;
  };

  void index_pieces() {
    for (std::int32_t id = 0; id < static_cast<std::int32_t>(spec_.pieces.size()); ++id) {
      const std::string& piece = spec_.pieces[at(id)];
      if (!piece.empty() && !pieces().special(id)) plain_ids_.emplace(piece, id);
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto it = plain_ids_.find(
          spec_.byte_fallback ? byte_piece(byte) : std::string(1, static_cast<char>(byte)));
      byte_ids_[at(byte)] = it == plain_ids_.end() ? spec_.unknown_id : it->second;
      if (it == plain_ids_.end() && !spec_.byte_fallback)
        missing_.push_back(static_cast<char>(byte));
    }
    if (spec_.byte_fallback) {  // only single characters are looked up
      std::erase_if(plain_ids_, [](const auto& entry) {
        char32_t cp = 0;
        return decode_utf8(entry.first, cp) != static_cast<int>(entry.first.size());
      });
    }
  }

  void hash_everything() {
    Sha256 hash;
    hash.update_field(spec_.byte_fallback ? "bpe-fallback-1" : "bpe-bytes-1");
    hash.update_u64(static_cast<std::uint64_t>(
        spec_.nfc | spec_.whole_words << 1 | spec_.space_first << 2 | spec_.split_at_spaces << 3));
    hash.update_u64(static_cast<std::uint64_t>(spec_.unknown_id));
    for (const std::string& pattern : spec_.patterns) hash.update_field(pattern);
    for (const std::string& piece : spec_.pieces) hash.update_field(piece);
    for (const Merge& m : spec_.merges) {
      hash.update_u64(static_cast<std::uint64_t>(static_cast<std::uint32_t>(m.left)) << 32 |
                      static_cast<std::uint32_t>(m.right));
      hash.update_u64(static_cast<std::uint64_t>(static_cast<std::uint32_t>(m.to)) << 32 | m.rank);
    }
    finish_digest(hash);
  }

  void encode_valid(std::string_view text, std::size_t base, bool space_first,
                    EncodeSink& out) const {
    if (spec_.byte_fallback) {
      encode_characters(text, base, space_first && spec_.space_first, out);
      return;
    }
    std::string changed;
    OffsetMap map;
    if (spec_.nfc && to_nfc(text, changed, map)) {
      encode_words(changed, space_first, &map, base, out);
    } else {
      encode_words(text, space_first, nullptr, base, out);
    }
  }

  void encode_words(std::string_view text, bool space_first, const OffsetMap* map, std::size_t base,
                    EncodeSink& out) const {
    Scratch scratch;
    std::string spaced;
    std::size_t shift = 0;  // bytes put in front
    if (space_first && spec_.space_first && text.front() != ' ') {
      spaced = " ";
      spaced += text;
      text = spaced;
      shift = 1;
    }
    const auto place = [&](std::size_t at) {
      at = at > shift ? at - shift : 0;
      return base + (map != nullptr ? map->original(static_cast<std::uint32_t>(at)) : at);
    };
    pretokenizer_.split(text, scratch.words);
    std::size_t at = 0;
    for (const std::string_view word : scratch.words) {
      if (!missing_.empty() && word.find_first_of(missing_) != std::string_view::npos) {
        encode_incomplete(word, scratch);
        std::size_t from = at;
        for (const Symbol& symbol : scratch.symbols) {
          out.put(symbol.id, place(from), place(from + symbol.num_bytes));
          from += symbol.num_bytes;
        }
        at += word.size();
        continue;
      }
      encode_word(word, scratch);
      for (const std::int32_t id : scratch.ids) {
        const std::size_t end = at + pieces().bytes(id).size();
        if (out.spans == nullptr) {
          out.ids.push_back(id);
        } else {
          out.put(id, place(at), place(end));
        }
        at = end;
      }
    }
  }

  /// Leaves the ids of one word in scratch.ids.
  void encode_word(std::string_view word, Scratch& scratch) const {
    if (spec_.whole_words || word.size() == 1) {
      if (const auto it = plain_ids_.find(word); it != plain_ids_.end()) {
        scratch.ids.assign(1, it->second);
        return;
      }
    }
    const bool cached = WordCache::fits(word);
    if (cached && cache_.get(word, scratch.ids)) return;
    scratch.symbols.clear();
    for (const char c : word)
      scratch.symbols.push_back({byte_ids_[static_cast<unsigned char>(c)], 1});
    model_.merge(scratch.symbols);
    scratch.ids.clear();
    for (const Symbol& symbol : scratch.symbols) scratch.ids.push_back(symbol.id);
    if (cached) cache_.put(word, scratch.ids);
  }

  /// Leaves a word in scratch.symbols that has bytes no token stands for: they become the unknown
  /// token, or, without one, nothing, and what stands beside them is merged as if they were not
  /// there. Their place goes to a neighbour.
  void encode_incomplete(std::string_view word, Scratch& scratch) const {
    scratch.symbols.clear();
    std::uint32_t dropped = 0;
    for (const char c : word) {
      const std::int32_t id = byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) {
        scratch.symbols.push_back({id, 1 + std::exchange(dropped, 0U)});
      } else if (!scratch.symbols.empty()) {
        ++scratch.symbols.back().num_bytes;
      } else {
        ++dropped;
      }
    }
    model_.merge(scratch.symbols);
  }

  void encode_characters(std::string_view text, std::size_t base, bool space_first,
                         EncodeSink& out) const {
    std::vector<Symbol> symbols;
    symbols.reserve(text.size() + 1);
    const auto flush = [&] {
      model_.merge(symbols);
      for (const Symbol& symbol : symbols) {
        out.put(symbol.id, base, base + symbol.num_bytes);
        base += symbol.num_bytes;
      }
      symbols.clear();
    };
    if (space_first) add_character(kMetaSpace, 0, symbols);
    while (!text.empty()) {
      char32_t cp = 0;
      const auto n = static_cast<std::uint32_t>(decode_utf8(text, cp));
      const bool space = cp == ' ' || cp == 0x2581;
      if (space && spec_.split_at_spaces) flush();
      add_character(space ? kMetaSpace : text.substr(0, n), n, symbols);
      text.remove_prefix(n);
    }
    flush();
  }

  /// One symbol for a character that has a piece, else one for each of its bytes. `num_bytes` of
  /// the text are its own.
  void add_character(std::string_view character, std::uint32_t num_bytes,
                     std::vector<Symbol>& symbols) const {
    if (const auto it = plain_ids_.find(character); it != plain_ids_.end()) {
      symbols.push_back({it->second, num_bytes});
      return;
    }
    for (std::size_t i = 0; i < character.size(); ++i) {
      const std::uint32_t own = i + 1 < character.size()
                                    ? (num_bytes == character.size() ? 1 : 0)
                                    : (num_bytes == character.size() ? 1 : num_bytes);
      symbols.push_back({byte_ids_[static_cast<unsigned char>(character[i])], own});
    }
  }

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };

  BpeSpec spec_;  ///< without pieces and merges
  BpeModel model_;
  Pretokenizer pretokenizer_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> plain_ids_;
  std::array<std::int32_t, 256> byte_ids_{};  ///< -1: no token, and no unknown one
  std::string missing_;                       ///< bytes without a token, over bytes
  WordCache cache_;
};

Status check_bytes(const BpeSpec& spec, const PieceTable& table) {
  std::array<bool, 256> found{};
  std::unordered_map<std::string_view, int> names;
  std::array<std::string, 256> byte_names;
  for (int byte = 0; byte < 256; ++byte) {
    byte_names[at(byte)] = spec.byte_fallback ? byte_piece(byte)
                                              : std::string(1, static_cast<char>(byte));
    names.emplace(byte_names[at(byte)], byte);
  }
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    if (table.special(static_cast<std::int32_t>(id))) continue;
    if (const auto it = names.find(spec.pieces[id]); it != names.end())
      found[at(it->second)] = true;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    // Some vocabularies over bytes were never taught control characters, or bytes UTF-8 has no use
    // for.
    if (!found[byte] && !spec.byte_fallback && !(byte >= 0x20 && byte < 0x7F) && byte != '\n')
      continue;
    if (!found[byte]) {
      return Status::invalid(spec.file, spec.file + ": no token stands for byte " +
                                            std::to_string(byte) +
                                            "; texts with it could not be encoded. The vocabulary "
                                            "is damaged or not byte-complete");
    }
  }
  return {};
}

}  // namespace

std::string bytes_of_byte_level(std::string_view piece) {
  const auto& alphabet = byte_level_alphabet();
  std::string bytes;
  for (std::string_view rest = piece; !rest.empty();) {
    char32_t cp = 0;
    const int n = decode_utf8(rest, cp);
    if (n == 0 || cp >= alphabet.size() || alphabet[cp] < 0) return std::string(piece);
    bytes.push_back(static_cast<char>(alphabet[cp]));
    rest.remove_prefix(to_size(n));
  }
  return bytes;
}

Result<std::unique_ptr<Tokenizer>> make_bpe_tokenizer(BpeSpec spec, TokenizerSettings settings) {
  std::unordered_map<std::string, int> byte_pieces;
  if (spec.byte_fallback) {
    for (int byte = 0; byte < 256; ++byte) byte_pieces.emplace(byte_piece(byte), byte);
  }
  PieceTable table;
  for (std::size_t id = 0; id < spec.pieces.size(); ++id) {
    const std::string& piece = spec.pieces[id];
    if (piece.empty()) continue;
    table.set(static_cast<std::int32_t>(id),
              spec.byte_fallback ? text_of_fallback_piece(piece, byte_pieces) : piece, false);
  }
  for (const AddedToken& token : spec.added) table.set(token.id, token.text, token.control());
  QUIRE_RETURN_IF_ERROR(check_bytes(spec, table));
  auto pretokenizer = Pretokenizer::compile(spec.patterns);
  if (!pretokenizer.ok())
    return pretokenizer.status().with_context(spec.file).with_field(spec.file);
  settings.strips_first_space = spec.byte_fallback && spec.space_first;
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(
      std::move(table), std::move(spec), std::move(pretokenizer).value(), std::move(settings)));
}

}  // namespace quire::tokenizer_internal
