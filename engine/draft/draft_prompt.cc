#include "engine/draft/draft_prompt.h"

namespace quire {
namespace {

std::int64_t leading_bos(const Respelling& spelled, const Tokenizer& draft) {
  return draft.add_bos() && draft.bos_id() && !spelled.ids().empty() && spelled.ids().front() == *draft.bos_id() ? 1 : 0;
}

}  // namespace

std::vector<std::int32_t> spell_document(std::span<const std::int32_t> token_ids, const Tokenizer& target, const Tokenizer& draft) {
  const Respelling spelled(target, token_ids, draft);
  return {spelled.ids().begin() + leading_bos(spelled, draft), spelled.ids().end()};
}

DraftPrompt::DraftPrompt(std::span<const std::int32_t> token_ids, std::span<const KvStretch> documents, const Tokenizer& target, const Tokenizer& draft, bool spelled_alike) {
  std::int64_t done = 0;
  const auto take = [&](std::int64_t end, bool document) {
    if (end > done) add(token_ids.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(end - done)), document, target, draft, spelled_alike);
    done = std::max(done, end);
  };
  for (const KvStretch& d : documents) {
    take(d.begin, false);
    take(d.end, true);
  }
  take(static_cast<std::int64_t>(token_ids.size()), false);
}

void DraftPrompt::add(std::span<const std::int32_t> ids, bool document, const Tokenizer& target, const Tokenizer& draft, bool spelled_alike) {
  Piece piece;
  piece.document = document;
  if (spelled_alike) {
    piece.ids.assign(ids.begin(), ids.end());
  } else {
    piece.respelling.emplace(target, ids, draft);
    piece.own_begin = pieces_.empty() && !document ? 0 : leading_bos(*piece.respelling, draft);
    piece.ids.assign(piece.respelling->ids().begin() + piece.own_begin, piece.respelling->ids().end());
  }
  pieces_.push_back(std::move(piece));
}

std::int64_t DraftPrompt::num_tokens() const {
  std::int64_t n = 0;
  for (const Piece& p : pieces_) n += static_cast<std::int64_t>(p.ids.size());
  return n;
}

std::vector<float> DraftPrompt::bring_back(std::span<const float> scores) const {
  std::vector<float> out;
  std::size_t at = 0;
  for (const Piece& p : pieces_) {
    const std::span<const float> own = scores.subspan(at, p.ids.size());
    at += p.ids.size();
    std::vector<float> back;
    if (p.respelling) {
      std::vector<float> padded(static_cast<std::size_t>(p.own_begin), 0.0f);
      padded.insert(padded.end(), own.begin(), own.end());
      back = p.respelling->bring_back(padded);
    } else {
      back.assign(own.begin(), own.end());
    }
    out.insert(out.end(), back.begin(), back.end());
  }
  return out;
}

}  // namespace quire
