#include "engine/tokenizer/tokenizer_base.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/index.h"

namespace quire::tokenizer_internal {

void PieceTable::set(std::int32_t id, std::string bytes, bool special) {
  if (id >= size()) pieces_.resize(to_size(id) + 1);
  pieces_[at(id)] = Piece{std::move(bytes), true, special};
}

void PieceTable::index() {
  by_bytes_.clear();
  by_bytes_.reserve(pieces_.size());
  for (const bool special : {true, false}) {
    for (std::int32_t id = 0; id < size(); ++id) {
      const Piece& piece = pieces_[at(id)];
      if (piece.known && piece.special == special && !piece.bytes.empty())
        by_bytes_.emplace(piece.bytes, id);
    }
  }
}

std::optional<std::int32_t> PieceTable::find(std::string_view bytes) const {
  const auto it = by_bytes_.find(bytes);
  if (it == by_bytes_.end()) return std::nullopt;
  return it->second;
}

TokenizerBase::TokenizerBase(PieceTable pieces, std::vector<AddedToken> added,
                             TokenizerSettings settings)
    : pieces_(std::move(pieces)), added_(std::move(added)), settings_(std::move(settings)) {
  pieces_.index();
}

std::vector<std::int32_t> TokenizerBase::encode(std::string_view text, Special special,
                                                Start start) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  EncodeSink sink{ids, nullptr};
  run(text, special, start, sink);
  return ids;
}

Encoding TokenizerBase::encode_with_offsets(std::string_view text, Special special,
                                            Start start) const {
  Encoding encoding;
  encoding.ids.reserve(text.size() / 4 + 4);
  encoding.spans.reserve(text.size() / 4 + 4);
  EncodeSink sink{encoding.ids, &encoding.spans};
  run(text, special, start, sink);
  // Contiguous from 0 to the end, also where a vocabulary drops white space at the ends.
  std::uint32_t at = 0;
  for (TokenSpan& span : encoding.spans) {
    span.begin = at;
    at = span.end = std::max(span.end, at);
  }
  if (!encoding.spans.empty()) encoding.spans.back().end = static_cast<std::uint32_t>(text.size());
  return encoding;
}

std::vector<ControlSpan> TokenizerBase::find_controls(std::string_view text) const {
  std::vector<ControlSpan> found;
  for (std::size_t at = 0; at < text.size();) {
    const auto match = added_.find(text, at, /*parse_control=*/true);
    if (!match) break;
    if (is_special(match->id)) found.push_back({match->begin, match->end, match->id});
    at = match->end;
  }
  return found;
}

void TokenizerBase::run(std::string_view text, Special special, Start start,
                        EncodeSink& out) const {
  text = text.substr(0, std::numeric_limits<std::uint32_t>::max());
  bool space_first = start == Start::kText;
  for (std::size_t at = 0; at < text.size();) {
    const auto match = added_.find(text, at, special == Special::kParse);
    const std::size_t end = match ? match->begin : text.size();
    if (end > at) encode_plain(text.substr(at, end - at), at, space_first, out);
    if (!match) return;
    out.put(match->id, match->begin, match->end);
    space_first = settings_.space_after_special;
    at = match->end;
  }
}

void TokenizerBase::finish_digest(Sha256& hash) {
  hash.update_u64(static_cast<std::uint64_t>(pieces_.size()));
  for (std::int32_t id = 0; id < pieces_.size(); ++id) {
    hash.update_field(pieces_.bytes(id));
    hash.update_u64(static_cast<std::uint64_t>(pieces_.special(id)));
  }
  for (const AddedToken& token : added_.tokens()) {
    hash.update_u64(static_cast<std::uint64_t>(token.id));
    hash.update_field(token.text);
    hash.update_u64(static_cast<std::uint64_t>(token.control() | token.lstrip << 1 |
                                               token.rstrip << 2 | token.single_word << 3));
  }
  hash.update_u64(static_cast<std::uint64_t>(settings_.bos_id.value_or(-1)));
  hash.update_u64(static_cast<std::uint64_t>(settings_.add_bos | settings_.strips_first_space << 1 |
                                             settings_.space_after_special << 2));
  digest_ = std::bit_cast<std::array<std::uint8_t, 32>>(hash.finish());
}

}  // namespace quire::tokenizer_internal
