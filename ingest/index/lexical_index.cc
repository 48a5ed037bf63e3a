#include "ingest/index/lexical_index.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

/// Number of deleted chunks kept before everything is renumbered.
constexpr std::size_t kDeadSlotsKept = 1024;
constexpr std::int64_t kTermBytes = 96;  ///< bytes of a different word: its entry and its lists
/// Looking one document up in a file costs about as much as reading so many in a row.
constexpr std::size_t kRowsOfLookup = 16;

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
  if (at == documents_.end()) {
    for (LexicalFile& file : files_) {
      const auto row = file.find(id);
      if (row.ok() && *row && file.remove(**row).ok()) return true;
      // What cannot be read stays, and its version tells that it is not current.
      if (!row.ok())
        log_error("a document stays in the index", {{"error", row.status().to_string()}});
    }
    return false;
  }
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

Status LexicalIndex::spill(const std::string& folder) {
  compact();
  LexicalFile::Contents contents;
  for (const auto& [id, d] : documents_)
    contents.rows.push_back({id, d.version, d.metadata_json, d.first_slot, d.num_chunks});
  for (const auto& [word, number] : term_ids_)
    contents.words.emplace_back(word, std::span<const Posting>(terms_[number].postings));
  std::sort(contents.words.begin(), contents.words.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  contents.chunk_words = chunk_words_;
  QUIRE_ASSIGN_OR_RETURN(LexicalFile file, LexicalFile::write(folder, contents));
  files_.push_back(std::move(file));
  LexicalIndex empty(bm25_);
  empty.files_ = std::move(files_);
  *this = std::move(empty);
  return {};
}

std::vector<std::string> LexicalIndex::drop_sparse_files() {
  std::vector<std::string> again;
  std::erase_if(files_, [&](const LexicalFile& file) {
    if (2 * file.num_documents() >= file.num_rows()) return false;
    std::vector<std::string> live;
    for (std::uint32_t row = 0; row < file.num_rows(); ++row) {
      if (!file.is_live(row)) continue;
      const auto d = file.document(row);
      if (!d.ok()) return false;
      live.push_back(d->id);
    }
    again.insert(again.end(), live.begin(), live.end());
    return true;
  });
  return again;
}

std::size_t LexicalIndex::num_documents() const {
  std::size_t n = documents_.size();
  for (const LexicalFile& file : files_) n += file.num_documents();
  return n;
}

std::size_t LexicalIndex::num_chunks() const {
  std::size_t n = num_chunks_;
  for (const LexicalFile& file : files_) n += file.num_chunks();
  return n;
}

std::int64_t LexicalIndex::memory_bytes() const {
  std::int64_t n = spillable_bytes();
  for (const LexicalFile& file : files_) n += file.memory_bytes();
  return n;
}

std::int64_t LexicalIndex::disk_bytes() const {
  std::int64_t n = 0;
  for (const LexicalFile& file : files_) n += file.disk_bytes();
  return n;
}

Result<LexicalIndex::Scores> LexicalIndex::scores(const std::vector<std::string>& query) const {
  Scores out;
  out.memory.resize(chunk_terms_.size());
  out.found.resize(files_.size());
  std::uint64_t all_words = num_words_;
  for (const LexicalFile& file : files_) {
    out.files.emplace_back(file.num_all_chunks());
    all_words += file.num_words();
  }
  // The map is ordered, so that sums do not depend on the order of words.
  std::map<std::string_view, int> counts;
  for (const std::string& word : query) ++counts[word];
  const double n = static_cast<double>(num_chunks()),
               average = std::max(n == 0 ? 0 : static_cast<double>(all_words) / n, 1.0);
  for (const auto& [word, count] : counts) {
    const auto at = term_ids_.find(std::string(word));
    const Term* term = at == term_ids_.end() ? nullptr : &terms_[at->second];
    std::uint64_t live = term ? term->live : 0;
    std::vector<std::vector<Posting>> in_files;
    for (const LexicalFile& file : files_) {
      QUIRE_ASSIGN_OR_RETURN(auto postings, file.postings(word));
      live += postings.size();
      in_files.push_back(std::move(postings));
    }
    const auto with = static_cast<double>(live);
    const double idf = std::log(1 + (n - with + 0.5) / (with + 0.5));
    const auto score = [&, times = count](std::uint32_t occurrences, std::uint32_t words) {
      const double f = occurrences, length = bm25_.k1 * (1 - bm25_.b + bm25_.b * words / average);
      return times * idf * f * (bm25_.k1 + 1) / (f + length);
    };
    for (const Posting& p :
         term ? std::span<const Posting>(term->postings) : std::span<const Posting>()) {
      if (p.count > 0) out.memory[p.chunk] += score(p.count, chunk_words_[p.chunk]);
    }
    for (std::size_t i = 0; i < files_.size(); ++i) {
      for (const Posting& p : in_files[i]) {
        double& sum = out.files[i][p.chunk];
        if (sum == 0) out.found[i].push_back(p.chunk);
        sum += score(p.count, files_[i].words_of(p.chunk));
      }
    }
  }
  return out;
}

/// Adds the best `limit` candidates of a file, and those with the score of the last.
Status LexicalIndex::find_in_file(std::size_t number, const Scores& scores, std::size_t limit,
                                  Unit unit, const Filter& filter, const Ids* only,
                                  const Terms& terms, std::vector<Candidate>* found) const {
  const LexicalFile& file = files_[number];
  const std::vector<double>& of_chunk = scores.files[number];
  // Ascending; none: all, and what is read tells its id and metadata.
  std::optional<std::vector<std::uint32_t>> rows;
  if (only && only->size() * kRowsOfLookup < file.num_rows()) {
    rows.emplace();
    for (const std::string& id : *only) {
      QUIRE_ASSIGN_OR_RETURN(const auto row, file.find(id));
      if (row) rows->push_back(*row);
    }
    std::sort(rows->begin(), rows->end());
  }
  for (const std::vector<std::string>& one_of : terms) {
    if (rows && rows->empty()) return {};
    QUIRE_ASSIGN_OR_RETURN(std::vector<std::uint32_t> with, file.rows_with(one_of));
    if (!rows) {
      rows = std::move(with);
      continue;
    }
    std::vector<std::uint32_t> both;
    std::ranges::set_intersection(*rows, with, std::back_inserter(both));
    rows = std::move(both);
  }
  const auto passes = [&](const LexicalFile::Document& d) {
    return (!only || only->contains(d.id)) && (!filter || filter(d.id, d.metadata_json));
  };
  // Best first; the documents are read, and asked the filter, until there are enough.
  std::vector<std::uint32_t> order = scores.found[number];
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return of_chunk[a] != of_chunk[b] ? of_chunk[a] > of_chunk[b] : a < b;
  });
  std::unordered_map<std::uint32_t, std::optional<LexicalFile::Document>> read;
  std::unordered_set<std::uint32_t> taken;  // documents, where each has one chunk
  std::size_t enough = 0;
  double last = 0;
  for (const std::uint32_t chunk : order) {
    if (enough >= limit && of_chunk[chunk] < last) return {};
    const std::uint32_t row = file.row_of(chunk);
    if (rows && !std::ranges::binary_search(*rows, row)) continue;
    if (unit == Unit::kBestChunkOfDocument && !taken.insert(row).second) continue;
    const auto [at, fresh] = read.try_emplace(row);
    if (fresh) {
      QUIRE_ASSIGN_OR_RETURN(LexicalFile::Document d, file.document(row));
      if (passes(d)) at->second = std::move(d);
    }
    if (!at->second) continue;
    found->push_back(
        {of_chunk[chunk], at->second->id, chunk - at->second->first_chunk, at->second->version});
    ++enough;
    last = of_chunk[chunk];
  }
  if (enough >= limit) return {};
  // The rest have no word of the query; rows are ordered by id.
  for (std::uint32_t row = 0; row < file.num_rows() && enough < limit; ++row) {
    if (rows) {
      const auto next = std::ranges::lower_bound(*rows, row);
      if (next == rows->end()) break;
      row = *next;
    }
    if (!file.is_live(row) || taken.contains(row)) continue;
    const auto known = read.find(row);
    if (known != read.end() && !known->second) continue;
    LexicalFile::Document d;
    if (known != read.end()) {
      d = *known->second;
    } else {
      QUIRE_ASSIGN_OR_RETURN(d, file.document(row));
      if (!passes(d)) continue;
    }
    if (d.num_chunks == 0) continue;
    const std::uint32_t chunks = unit == Unit::kBestChunkOfDocument ? 1 : d.num_chunks;
    for (std::uint32_t i = 0; i < chunks; ++i) {
      if (of_chunk[d.first_chunk + i] > 0) continue;
      found->push_back({0, d.id, i, d.version});
      ++enough;
    }
  }
  return {};
}

Result<std::vector<ChunkHit>> LexicalIndex::search(const std::vector<std::string>& query,
                                                   std::size_t limit, Unit unit,
                                                   const Filter& filter, const Ids* only,
                                                   const Terms& terms) const {
  QUIRE_ASSIGN_OR_RETURN(const Scores scores, this->scores(query));
  std::vector<Candidate> in_files;
  for (std::size_t i = 0; i < files_.size(); ++i)
    QUIRE_RETURN_IF_ERROR(find_in_file(i, scores, limit, unit, filter, only, terms, &in_files));
  struct Ranked {
    double score;
    const std::string* id;
    std::uint32_t chunk;
    std::uint64_t version;
  };
  std::vector<Ranked> found;
  for (const Candidate& c : in_files) found.push_back({c.score, &c.id, c.chunk, c.version});
  const auto add = [&](const std::string& id, const Document& d) {
    if (d.num_chunks == 0 || (filter && !filter(id, d.metadata_json))) return;
    std::uint32_t best = 0;
    for (std::uint32_t i = 0; i < d.num_chunks; ++i) {
      if (unit == Unit::kChunk)
        found.push_back({scores.memory[d.first_slot + i], &id, i, d.version});
      else if (scores.memory[d.first_slot + i] > scores.memory[d.first_slot + best])
        best = i;
    }
    if (unit == Unit::kBestChunkOfDocument)
      found.push_back({scores.memory[d.first_slot + best], &id, best, d.version});
  };
  if (only) {
    for (const std::string& id : *only)
      if (const auto at = documents_.find(id); at != documents_.end()) add(at->first, at->second);
  } else {
    for (const auto& [id, d] : documents_) add(id, d);
  }
  const auto before = [](const Ranked& a, const Ranked& b) {
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
  if (at != documents_.end()) return at->second.version;
  for (const LexicalFile& file : files_) {
    const auto row = file.find(id);
    if (!row.ok() || !*row) continue;
    if (const auto d = file.document(**row); d.ok()) return d->version;
  }
  return 0;
}

}  // namespace quire
