#include "ingest/index/lexical_index.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/index.h"

namespace quire {
namespace {

/// Number of deleted chunks kept before everything is renumbered.
constexpr std::size_t kDeadSlotsKept = 1024;
constexpr std::int64_t kTermBytes = 96;  ///< bytes of a different word: its entry and its lists

}  // namespace

void LexicalIndex::put(const IndexedDocument& document) {
  remove(document.id);
  Document entry;
  entry.version = document.version;
  entry.metadata_json = document.metadata_json;
  entry.first_slot = static_cast<std::uint32_t>(chunk_terms_.size());
  entry.num_chunks = static_cast<std::uint32_t>(document.chunks.size());
  chunk_terms_.resize(chunk_terms_.size() + document.chunks.size());
  chunk_words_.resize(chunk_terms_.size());
  entry.bytes = static_cast<std::int64_t>(document.id.size() + document.metadata_json.size() +
                                          sizeof(Document));
  for (std::size_t i = 0; i < document.chunks.size(); ++i) {
    entry.bytes += add_chunk(entry.first_slot + static_cast<std::uint32_t>(i), document.chunks[i]);
  }
  document_bytes_ += entry.bytes;
  documents_[document.id] = std::move(entry);
}

std::int64_t LexicalIndex::add_chunk(std::uint32_t slot, const std::vector<std::string>& words) {
  auto& own = chunk_terms_[slot];
  for (const std::string& word : words) {
    const auto [at, fresh] = term_ids_.try_emplace(word, static_cast<std::uint32_t>(terms_.size()));
    if (fresh) {
      terms_.emplace_back();
      term_bytes_ += kTermBytes + count_of(word);
    }
    Term& term = terms_[at->second];
    if (!term.postings.empty() && term.postings.back().chunk == slot) {
      ++term.postings.back().count;
      continue;
    }
    term.postings.push_back({slot, 1});
    ++term.live;
    own.push_back(at->second);
  }
  chunk_words_[slot] = static_cast<std::uint32_t>(words.size());
  ++num_chunks_;
  num_words_ += words.size();
  return static_cast<std::int64_t>(own.size() * (sizeof(Posting) + sizeof(std::uint32_t)) +
                                   sizeof(own));
}

bool LexicalIndex::remove(std::string_view id) {
  const auto at = documents_.find(id);
  if (at == documents_.end()) return false;
  const Document& d = at->second;
  for (std::uint32_t i = 0; i < d.num_chunks; ++i) drop_chunk(d.first_slot + i);
  document_bytes_ -= d.bytes;
  documents_.erase(at);
  if (chunk_terms_.size() > 2 * num_chunks_ + kDeadSlotsKept) compact();
  return true;
}

void LexicalIndex::drop_chunk(std::uint32_t slot) {
  for (const std::uint32_t id : chunk_terms_[slot]) {
    Term& term = terms_[id];
    const auto posting = std::lower_bound(
        term.postings.begin(), term.postings.end(), slot,
        [](const Posting& p, std::uint32_t s) { return p.chunk < s; });
    posting->count = 0;
    --term.live;
  }
  std::vector<std::uint32_t>().swap(chunk_terms_[slot]);
  num_words_ -= chunk_words_[slot];
  chunk_words_[slot] = 0;
  --num_chunks_;
}

/// Renumbers the remaining chunks without gaps and drops words that no chunk has.
void LexicalIndex::compact() {
  std::vector<std::uint32_t> slot_of(chunk_terms_.size(), UINT32_MAX),
      term_of(terms_.size(), UINT32_MAX);
  std::vector<Document*> in_order;
  for (auto& [id, d] : documents_) in_order.push_back(&d);
  std::sort(in_order.begin(), in_order.end(),
            [](const Document* a, const Document* b) { return a->first_slot < b->first_slot; });
  std::uint32_t next = 0;
  for (Document* d : in_order) {
    for (std::uint32_t i = 0; i < d->num_chunks; ++i) {
      const std::uint32_t from = d->first_slot + i;
      slot_of[from] = next + i;
      chunk_terms_[next + i] = std::move(chunk_terms_[from]);
      chunk_words_[next + i] = chunk_words_[from];
    }
    d->first_slot = next;
    next += d->num_chunks;
  }
  chunk_terms_.resize(next);
  chunk_words_.resize(next);
  std::vector<Term> terms;
  for (auto at = term_ids_.begin(); at != term_ids_.end();) {
    Term& term = terms_[at->second];
    if (term.live == 0) {
      term_bytes_ -= kTermBytes + count_of(at->first);
      at = term_ids_.erase(at);
      continue;
    }
    std::erase_if(term.postings, [](const Posting& p) { return p.count == 0; });
    for (Posting& p : term.postings) p.chunk = slot_of[p.chunk];
    term_of[at->second] = static_cast<std::uint32_t>(terms.size());
    at->second = term_of[at->second];
    terms.push_back(std::move(term));
    ++at;
  }
  terms_ = std::move(terms);
  for (auto& own : chunk_terms_) {
    for (std::uint32_t& id : own) id = term_of[id];
  }
}

std::vector<double> LexicalIndex::scores(const std::vector<std::string>& query) const {
  std::vector<double> out(chunk_terms_.size());
  // The map is ordered, so that sums do not depend on the order of words.
  std::map<std::string_view, int> counts;
  for (const std::string& word : query) ++counts[word];
  const double n = static_cast<double>(num_chunks_), average = std::max(average_words(), 1.0);
  for (const auto& [word, count] : counts) {
    const auto at = term_ids_.find(std::string(word));
    if (at == term_ids_.end()) continue;
    const Term& term = terms_[at->second];
    const double idf = std::log(1 + (n - term.live + 0.5) / (term.live + 0.5));
    for (const Posting& p : term.postings) {
      if (p.count == 0) continue;
      const double f = p.count,
                   length = bm25_.k1 * (1 - bm25_.b + bm25_.b * chunk_words_[p.chunk] / average);
      out[p.chunk] += count * idf * f * (bm25_.k1 + 1) / (f + length);
    }
  }
  return out;
}

std::vector<ChunkHit> LexicalIndex::search(const std::vector<std::string>& query, std::size_t limit,
                                           Unit unit, const Filter& filter) const {
  const std::vector<double> scores = this->scores(query);
  struct Candidate {
    double score;
    const std::string* id;
    std::uint32_t chunk;
    std::uint64_t version;
  };
  std::vector<Candidate> found;
  for (const auto& [id, d] : documents_) {
    if (d.num_chunks == 0 || (filter && !filter(id, d.metadata_json))) continue;
    std::uint32_t best = 0;
    for (std::uint32_t i = 0; i < d.num_chunks; ++i) {
      if (unit == Unit::kChunk)
        found.push_back({scores[d.first_slot + i], &id, i, d.version});
      else if (scores[d.first_slot + i] > scores[d.first_slot + best])
        best = i;
    }
    if (unit == Unit::kBestChunkOfDocument)
      found.push_back({scores[d.first_slot + best], &id, best, d.version});
  }
  const auto before = [](const Candidate& a, const Candidate& b) {
    if (a.score != b.score) return a.score > b.score;
    return std::tie(*a.id, a.chunk) < std::tie(*b.id, b.chunk);
  };
  const std::size_t n = std::min(limit, found.size());
  std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end(),
                    before);
  std::vector<ChunkHit> out;
  for (std::size_t i = 0; i < n; ++i)
    out.push_back({*found[i].id, found[i].version, static_cast<std::int32_t>(found[i].chunk),
                   found[i].score});
  return out;
}

std::uint64_t LexicalIndex::version(std::string_view id) const {
  const auto at = documents_.find(id);
  return at == documents_.end() ? 0 : at->second.version;
}

}  // namespace quire
