#include "engine/draft/draft_prompt.h"

#include <algorithm>

#include "base/index.h"

namespace quire {
namespace {

/// Returns the parts of `ranges` within one range, relative to its beginning; touching ones are
/// joined.
std::vector<RowRange> within(std::span<const RowRange> ranges, const RowRange& piece) {
  std::vector<RowRange> out;
  for (const RowRange& s : ranges) {
    const RowRange part{std::max(s.begin, piece.begin) - piece.begin,
                        std::min(s.end, piece.end) - piece.begin};
    if (part.end <= part.begin) continue;
    if (!out.empty() && out.back().end >= part.begin)
      out.back().end = std::max(out.back().end, part.end);
    else
      out.push_back(part);
  }
  return out;
}

std::int64_t total(std::span<const RowRange> ranges) {
  std::int64_t n = 0;
  for (const RowRange& s : ranges) n += s.end - s.begin;
  return n;
}

std::int64_t leading_bos(const Retokenization& spelled, const Tokenizer& draft) {
  return draft.add_bos() && draft.bos_id() && !spelled.ids().empty() &&
                 spelled.ids().front() == *draft.bos_id()
             ? 1
             : 0;
}

}  // namespace

std::vector<std::int32_t> spell_document(std::span<const std::int32_t> token_ids,
                                         const Tokenizer& target, const Tokenizer& draft) {
  const Retokenization spelled(target, token_ids, draft);
  return {spelled.ids().begin() + leading_bos(spelled, draft), spelled.ids().end()};
}

DraftPrompt::DraftPrompt(std::span<const std::int32_t> token_ids, const Ranges& ranges,
                         const Tokenizer& target, const Tokenizer& draft, bool spelled_alike) {
  const RowRange all{0, count_of(token_ids)};
  const std::span<const RowRange> kept = ranges.kept.empty() ? std::span(&all, 1) : ranges.kept;
  std::int64_t done = 0;
  const auto take = [&](std::int64_t end, bool document) {
    const RowRange piece{done, end};
    if (end > done)
      add(token_ids.subspan(at(done), at(end - done)), within(kept, piece), document, target, draft,
          spelled_alike);
    done = std::max(done, end);
  };
  for (const RowRange& d : ranges.documents) {
    take(d.begin, false);
    take(d.end, true);
  }
  take(all.end, false);
}

void DraftPrompt::add(std::span<const std::int32_t> ids, std::vector<RowRange> kept, bool document,
                      const Tokenizer& target, const Tokenizer& draft, bool spelled_alike) {
  Piece piece;
  piece.document = document;
  if (spelled_alike) {
    piece.ids.assign(ids.begin(), ids.end());
    piece.kept = std::move(kept);
  } else {
    piece.retokenization.emplace(target, ids, draft);
    piece.own_begin = pieces_.empty() && !document ? 0 : leading_bos(*piece.retokenization, draft);
    piece.ids.assign(piece.retokenization->ids().begin() + piece.own_begin,
                     piece.retokenization->ids().end());
    std::vector<RowRange> spelled = {{0, leading_bos(*piece.retokenization, draft)}};
    if (total(kept) == count_of(ids)) {
      spelled.back().end = count_of(piece.retokenization->ids());
    } else {
      for (const RowRange& s : piece.retokenization->bring_over(kept)) spelled.push_back(s);
    }
    piece.kept = within(spelled, {piece.own_begin, count_of(piece.retokenization->ids())});
  }
  pieces_.push_back(std::move(piece));
}

std::int64_t DraftPrompt::num_tokens() const {
  std::int64_t n = 0;
  for (const Piece& p : pieces_) n += count_of(p.ids);
  return n;
}

std::int64_t DraftPrompt::num_kept() const {
  std::int64_t n = 0;
  for (const Piece& p : pieces_) n += total(p.kept);
  return n;
}

const DraftPrompt::Piece* DraftPrompt::last_kept() const {
  const auto found = std::find_if(pieces_.rbegin(), pieces_.rend(),
                                  [](const Piece& p) { return !p.kept.empty(); });
  return found == pieces_.rend() ? nullptr : &*found;
}

std::vector<float> DraftPrompt::bring_back(std::span<const float> scores) const {
  std::vector<float> out;
  std::size_t at = 0;
  for (const Piece& p : pieces_) {
    const std::span<const float> own = scores.subspan(at, p.ids.size());
    at += p.ids.size();
    std::vector<float> back;
    if (p.retokenization) {
      std::vector<float> padded(to_size(p.own_begin), 0.0f);
      padded.insert(padded.end(), own.begin(), own.end());
      back = p.retokenization->bring_back(padded);
    } else {
      back.assign(own.begin(), own.end());
    }
    out.insert(out.end(), back.begin(), back.end());
  }
  return out;
}

}  // namespace quire
