#include "ingest/search/retrieval.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/index.h"
#include "base/log.h"
#include "base/words.h"
#include "cachestore/format/metadata.h"
#include "ingest/document/utf8.h"
#include "ingest/index/embedding_record.h"
#include "ingest/index/lexical_index.h"
#include "ingest/index/title_index.h"

namespace quire {
namespace {

constexpr std::size_t kPage = 100;  // documents per page of a listing
constexpr int kMostAttempts = 4;    // attempts of a search whose documents change during it
constexpr std::size_t kMostResults = 1000;
/// How many places of each ranking are fused.
constexpr std::size_t kFusedResults = 100, kFusedPerResult = 4;
/// What the least of a ranking by meaning has that a text outside of it has not.
constexpr double kLeastMeaning = 0.1;
/// How many of the best chunks name documents, and how many they may name.
constexpr std::size_t kNamingResults = 10, kMostNamed = 64;
/// What moves to disk at once, as a part of the limit of memory, and the least of one namespace in
/// it. Each makes a file that is held open, so beyond some of them only large ones are made.
constexpr std::int64_t kMovedPart = 8, kSmallestPart = 256;
constexpr std::size_t kMostSmallFiles = 512;
/// The most that a name gives, as a part of the score of the text that names: less than it has.
constexpr double kMostOfNaming = 0.999;

using DocumentName = std::pair<std::string, std::string>;  // namespace, id

/// Returns the words of each chunk as the model sees it: the title precedes every chunk.
IndexedDocument indexed(const DocumentManifest& m, std::string_view text,
                        std::string_view language) {
  IndexedDocument d;
  Stemmer stemmer(language);
  d.id = m.id;
  d.version = indexed_version(m);
  d.metadata_json = m.metadata_json;
  const std::vector<std::string> title = index_words(m.title, stemmer);
  for (const DocumentChunk& c : m.chunks) {
    std::vector<std::string>& words = d.chunks.emplace_back(title);
    if (c.byte_begin > c.byte_end || c.byte_end > text.size()) continue;
    for (std::string& w :
         index_words(text.substr(c.byte_begin, c.byte_end - c.byte_begin), stemmer))
      words.push_back(std::move(w));
  }
  return d;
}

double of_best(double score, const std::vector<ChunkHit>& ranking) {
  return ranking.front().score > 0 ? score / ranking.front().score : 0;
}

double between_least_and_best(double score, const std::vector<ChunkHit>& ranking) {
  const double least = ranking.back().score, best = ranking.front().score;
  return best > least ? kLeastMeaning + (1 - kLeastMeaning) * (score - least) / (best - least) : 1;
}

/// Returns all hits, the best first; equal sums are ordered by id, then chunk.
std::vector<ChunkHit> fused(const std::vector<ChunkHit>& words,
                            const std::vector<ChunkHit>& meaning, const Fusion& fusion,
                            RetrieveUnit unit) {
  std::map<std::pair<std::string, std::int32_t>, ChunkHit> sums;
  const auto add = [&](const ChunkHit& hit, double part) {
    const auto at = sums.try_emplace({hit.id, unit == RetrieveUnit::kChunk ? hit.chunk : 0},
                                     ChunkHit{hit.id, hit.version, hit.chunk, 0})
                        .first;
    at->second.score += part;
  };
  for (const ChunkHit& hit : words) add(hit, (1 - fusion.meaning) * of_best(hit.score, words));
  for (const ChunkHit& hit : meaning)
    add(hit, fusion.meaning * between_least_and_best(hit.score, meaning));
  std::vector<ChunkHit> out;
  for (auto& [name, hit] : sums) out.push_back(std::move(hit));
  std::stable_sort(out.begin(), out.end(),
                   [](const ChunkHit& a, const ChunkHit& b) { return a.score > b.score; });
  return out;
}

class RetrievalImpl final : public Retrieval {
 public:
  RetrievalImpl(const RetrievalOptions& options, Store& store, std::shared_ptr<Embedder> embedder)
      : options_(options), store_(store) {
    if (options.embeddings)
      vectors_ = std::make_unique<EmbeddingIndex>(*options.embeddings, store, std::move(embedder));
  }
  ~RetrievalImpl() override { stop(); }

  void start() override;
  void stop() override;
  bool ready() const override { return ready_; }
  RetrievalStats stats() const override;
  std::uint64_t changes(std::string_view ns) const override;
  RetrieveScorer default_scorer() const override { return options_.scorer; }
  Result<std::vector<Passage>> search(std::string_view ns, const RetrieveRequest& request) override;

 private:
  void changed(std::string_view ns, std::string_view id);
  void work();
  Status build();
  void catch_up();
  Status refresh(const DocumentName& name);
  void put(const std::string& ns, const IndexedDocument& document,
           const std::vector<std::string>& title);
  void drop(const DocumentName& name);
  Status make_room();
  void note_refusal(const Status& refusal);
  void note_success();
  void enter_again(const std::string& ns, LexicalIndex& index);
  std::map<std::string, double> named_by(std::string_view ns, std::span<const ChunkHit> hits,
                                         const TitleIndex& titles) const;
  Status follow_titles(std::string_view ns, const LexicalIndex& index,
                       const std::vector<std::string>& words, const LexicalIndex::Filter& filter,
                       const RetrieveRequest& request, std::vector<ChunkHit>& ranking) const;
  Result<std::vector<ChunkHit>> ranked(std::string_view ns, const RetrieveRequest& request,
                                       const std::vector<std::string>& words,
                                       std::span<const float> vector) const;
  Result<std::optional<Passage>> passage(std::string_view ns, const ChunkHit& hit,
                                         RetrieveUnit unit);

  const RetrievalOptions options_;
  Store& store_;
  std::atomic<bool> ready_{false}, stopped_{false};

  mutable std::mutex changes_mu_;
  std::condition_variable wake_;
  std::set<DocumentName> changes_;                                 // guarded by changes_mu_
  std::map<std::string, std::uint64_t, std::less<>> num_changes_;  // guarded by changes_mu_; by ns

  std::mutex apply_mu_;  // held while changes are read and entered, by one thread at a time
  mutable std::shared_mutex index_mu_;
  std::map<std::string, LexicalIndex, std::less<>> indexes_;  // guarded by index_mu_
  std::map<std::string, TitleIndex, std::less<>> titles_;     // guarded by index_mu_
  std::set<DocumentName> left_out_;                           // guarded by index_mu_
  Status refusal_;                 // guarded by index_mu_: the disk's last one; OK: it takes all
  Clock::time_point write_again_;  // guarded by index_mu_: not before, after a refusal
  /// Null: off. Called under index_mu_, never the other way round.
  std::unique_ptr<EmbeddingIndex> vectors_;
  std::thread thread_;
};

void RetrievalImpl::start() {
  store_.watch_documents([this](std::string_view ns, std::string_view id) { changed(ns, id); });
  const auto namespaces = store_.namespaces();
  // An empty store is already indexed. Documents added since the watch began are changes.
  ready_ = std::all_of(namespaces.begin(), namespaces.end(),
                       [](const NamespaceStats& n) { return n.documents == 0; });
  thread_ = std::thread([this] { work(); });
  if (vectors_) vectors_->start();
}

void RetrievalImpl::stop() {
  {
    const std::lock_guard lock(changes_mu_);
    if (stopped_.exchange(true)) return;
  }
  wake_.notify_all();
  store_.watch_documents({});
  if (vectors_) vectors_->stop();
  if (thread_.joinable()) thread_.join();
}

void RetrievalImpl::changed(std::string_view ns, std::string_view id) {
  {
    const std::lock_guard lock(changes_mu_);
    changes_.emplace(ns, id);
    ++num_changes_[std::string(ns)];
  }
  wake_.notify_all();
  if (vectors_) vectors_->changed(ns, id);
}

std::uint64_t RetrievalImpl::changes(std::string_view ns) const {
  const std::lock_guard lock(changes_mu_);
  const auto at = num_changes_.find(ns);
  return at == num_changes_.end() ? 0 : at->second;
}

void RetrievalImpl::work() {
  if (const Status s = ready_ ? Status() : build(); !s.ok()) {
    log_error("the index for retrieval could not be built: retrieval is off until a restart",
              {{"reason", s.to_string()}});
    return;
  }
  if (stopped_) return;
  ready_ = true;
  if (const RetrievalStats now = stats(); now.documents > 0) {
    log_info("retrieval ready", {{"documents", std::to_string(now.documents)},
                                 {"chunks", std::to_string(now.chunks)},
                                 {"bytes", std::to_string(now.memory_bytes)}});
  }
  while (true) {
    {
      std::unique_lock lock(changes_mu_);
      wake_.wait(lock, [this] { return stopped_ || !changes_.empty(); });
      if (stopped_) return;
    }
    catch_up();
  }
}

Status RetrievalImpl::build() {
  for (const NamespaceStats& ns : store_.namespaces()) {
    ListOptions page;
    page.limit = kPage;
    page.filter = [](const DocumentManifest& m) { return m.status == DocumentStatus::kReady; };
    while (!stopped_) {
      QUIRE_ASSIGN_OR_RETURN(const DocumentList list, store_.list_documents(ns.name, page));
      for (const DocumentManifest& m : list.documents) {
        const std::lock_guard lock(apply_mu_);
        if (const Status s = refresh({ns.name, m.id}); !s.ok()) {
          log_warning("a document cannot be read and is not found by retrieval",
                      {{"namespace", ns.name}, {"document", m.id}, {"reason", s.to_string()}});
        }
        if (stopped_) return {};
      }
      if (!list.has_more || list.documents.empty()) break;
      page.after = list.documents.back().id;
    }
  }
  return {};
}

/// Enters every change known now. A second caller waits for the first, because changes taken out of
/// the set must be in the index.
void RetrievalImpl::catch_up() {
  const std::lock_guard applying(apply_mu_);
  // Entering changes may empty a file of the index, whose documents are then changes too.
  for (int round = 0; round < kMostAttempts; ++round) {
    std::set<DocumentName> changes;
    {
      const std::lock_guard lock(changes_mu_);
      changes.swap(changes_);
    }
    if (changes.empty()) return;
    for (const DocumentName& name : changes) {
      if (const Status s = refresh(name); !s.ok()) {
        log_warning(
            "a changed document cannot be read and is not found by retrieval",
            {{"namespace", name.first}, {"document", name.second}, {"reason", s.to_string()}});
        drop(name);
      }
    }
  }
}

/// Gives the index the store's current version. It runs under apply_mu_, so that the latest version
/// read is entered last.
Status RetrievalImpl::refresh(const DocumentName& name) {
  const auto& [ns, id] = name;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const auto head = store_.get_document_head(ns, id);
    if (head.code() == Code::kNotFound || (head.ok() && head->status != DocumentStatus::kReady)) {
      drop(name);
      // This includes records from a time when embeddings were on.
      return head.ok() ? Status() : erase_embeddings(store_, ns, id);
    }
    if (!head.ok()) return head.status();
    {
      const std::shared_lock lock(index_mu_);
      const auto at = indexes_.find(ns);
      if (at != indexes_.end() && at->second.version(id) == indexed_version(*head)) return {};
    }
    const auto text = store_.get_text(ns, id);
    const auto again = store_.get_document_head(ns, id);
    // The document was replaced in between.
    if (!again.ok() || indexed_version(*again) != indexed_version(*head)) continue;
    if (!text.ok()) return text.status();
    Stemmer stemmer(options_.language);
    put(ns, indexed(*head, *text, options_.language), title_words(head->title, stemmer));
    return {};
  }
  return Status::unavailable("it changes faster than it can be read");
}

void RetrievalImpl::put(const std::string& ns, const IndexedDocument& document,
                        const std::vector<std::string>& title) {
  const std::unique_lock lock(index_mu_);
  const DocumentName name(ns, document.id);
  LexicalIndex& index = indexes_[ns];
  index.remove(document.id);
  titles_[ns].remove(document.id);
  left_out_.erase(name);
  enter_again(ns, index);
  if (const Status room = make_room(); !room.ok()) {
    if (left_out_.empty()) {
      log_warning(
          refusal_.ok()
              ? "the index for retrieval is full: further documents are not found; raise "
                "retrieve.max_index_bytes or retrieve.max_index_disk_bytes and start again"
              : "a part of the index for retrieval cannot be written: further documents are not "
                "found until it can be",
          {{"reason", room.to_string()}});
    }
    left_out_.insert(name);
    return;
  }
  index.put(document);
  titles_[ns].put(document.id, title);
}

/// Moves indexes to disk, the largest first, if all together take too much memory. index_mu_ is
/// held.
Status RetrievalImpl::make_room() {
  std::int64_t memory = 0, disk = 0, movable = 0;
  std::size_t files = 0;
  for (const auto& [ns, index] : indexes_) {
    memory += index.memory_bytes() + titles_[ns].memory_bytes();
    disk += index.disk_bytes();
    movable += index.spillable_bytes();
    files += index.num_files();
  }
  const std::int64_t most = options_.max_index_bytes, wanted = most / kMovedPart;
  if (most <= 0 || memory < most) return {};
  if (!refusal_.ok() && Clock::now() < write_again_) return refusal_;
  std::vector<LexicalIndex*> largest;
  for (auto& [ns, index] : indexes_) largest.push_back(&index);
  std::ranges::sort(largest, std::greater(), &LexicalIndex::spillable_bytes);
  // A small rest would not make room for long.
  std::int64_t moved = 0;
  for (auto at = largest.begin(); at != largest.end() && movable >= wanted; ++at, ++files) {
    const std::int64_t bytes = (*at)->spillable_bytes(), before = (*at)->disk_bytes();
    const std::int64_t least = files < kMostSmallFiles ? most / kSmallestPart : wanted;
    // What is moved takes less on disk than in memory, unless metadata have very many members.
    if ((moved > 0 && moved >= wanted) || bytes == 0 || bytes < least ||
        disk + bytes > options_.max_index_disk_bytes)
      break;
    if (const Status s = (*at)->spill(store_.options().path); !s.ok()) {
      note_refusal(s);
      if (moved == 0) return s;
      break;
    }
    note_success();
    moved += bytes;
    disk += (*at)->disk_bytes() - before;
  }
  if (moved == 0)
    return Status::exhausted(std::to_string(memory) + " bytes in memory, " + std::to_string(disk) +
                             " on disk");
  log_info("a part of the index for retrieval lies on disk", {{"bytes", std::to_string(disk)}});
  return {};
}

/// index_mu_ is held.
void RetrievalImpl::note_refusal(const Status& refusal) {
  refusal_ = refusal;
  write_again_ = Clock::now() + options_.refused_pause;
}

/// Has the documents that were left out after a refusal read again. index_mu_ is held.
void RetrievalImpl::note_success() {
  if (refusal_.ok()) return;
  refusal_ = Status();
  {
    const std::lock_guard lock(changes_mu_);
    changes_.insert(left_out_.begin(), left_out_.end());
  }
  wake_.notify_all();
}

/// Has the documents that are left in mostly empty files read again. index_mu_ is held.
void RetrievalImpl::enter_again(const std::string& ns, LexicalIndex& index) {
  const auto again = index.drop_sparse_files();
  if (again.empty()) return;
  {
    const std::lock_guard lock(changes_mu_);
    for (const std::string& id : again) changes_.emplace(ns, id);
  }
  wake_.notify_all();
}

void RetrievalImpl::drop(const DocumentName& name) {
  const std::unique_lock lock(index_mu_);
  left_out_.erase(name);
  const auto at = indexes_.find(name.first);
  if (at == indexes_.end()) return;
  at->second.remove(name.second);
  titles_[name.first].remove(name.second);
  enter_again(name.first, at->second);
  if (at->second.num_documents() > 0) return;
  indexes_.erase(at);
  titles_.erase(name.first);
}

RetrievalStats RetrievalImpl::stats() const {
  RetrievalStats out;
  out.ready = ready_;
  if (vectors_) out.embeddings = vectors_->stats();
  const std::shared_lock lock(index_mu_);
  for (const auto& [ns, index] : indexes_) {
    out.documents += index.num_documents();
    out.chunks += index.num_chunks();
    out.memory_bytes += index.memory_bytes();
    if (const auto titles = titles_.find(ns); titles != titles_.end())
      out.memory_bytes += titles->second.memory_bytes();
    out.disk_bytes += index.disk_bytes();
  }
  out.left_out = left_out_.size();
  return out;
}

// -------------------------------------------------------------------------------------------------
// Searching

/// Returns the documents that the hits name by their titles, each with the best score of a hit that
/// does; the best of them if there are many. A hit that cannot be read names nothing.
std::map<std::string, double> RetrievalImpl::named_by(std::string_view ns,
                                                      std::span<const ChunkHit> hits,
                                                      const TitleIndex& titles) const {
  std::map<std::string, double> out;
  Stemmer stemmer(options_.language);
  for (const ChunkHit& hit : hits) {
    const auto head = store_.get_document_head(ns, hit.id);
    const auto text = store_.get_text(ns, hit.id);
    if (!head.ok() || !text.ok()) continue;
    // A document that was replaced meanwhile is found anew by passage().
    if (indexed_version(*head) != hit.version || at(hit.chunk) >= head->chunks.size()) continue;
    const DocumentChunk& c = head->chunks[at(hit.chunk)];
    if (c.byte_begin > c.byte_end || c.byte_end > text->size()) continue;
    const auto words = split_words(
        std::string_view(*text).substr(c.byte_begin, c.byte_end - c.byte_begin), stemmer);
    for (std::string& id : titles.named_in(words, hit.id)) {
      if (out.size() == kMostNamed && !out.contains(id)) return out;
      double& best = out.try_emplace(std::move(id), 0).first->second;
      best = std::max(best, hit.score);
    }
  }
  return out;
}

/// Adds a part of the best hits' scores to the documents that they name: to the best chunk of each
/// in the ranking, or where it has none there, to its best chunk by words. Keeps the length.
Status RetrievalImpl::follow_titles(std::string_view ns, const LexicalIndex& index,
                                    const std::vector<std::string>& words,
                                    const LexicalIndex::Filter& filter,
                                    const RetrieveRequest& request,
                                    std::vector<ChunkHit>& ranking) const {
  const double links = request.links.value_or(options_.links);
  const auto titles = titles_.find(ns);
  if (links <= 0 || titles == titles_.end()) return {};
  const auto naming = std::span(ranking).first(std::min(ranking.size(), kNamingResults));
  const auto matching = std::ranges::find_if(naming,
                                             [](const ChunkHit& h) { return h.score <= 0; });
  const auto named = named_by(ns, naming.first(to_size(matching - naming.begin())), titles->second);
  if (named.empty()) return {};
  LexicalIndex::Ids ids;
  for (const auto& [id, score] : named) ids.insert(id);
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<ChunkHit> best,
      index.search(words, ids.size(), LexicalIndex::Unit::kBestChunkOfDocument, filter, &ids));
  const std::size_t limit = ranking.size();
  for (ChunkHit hit : best) {
    // Its BM25 score is of another scale, and a text that is in neither ranking has none here.
    if (request.scorer == RetrieveScorer::kHybrid) hit.score = 0;
    auto at = std::ranges::find(ranking, hit.id, &ChunkHit::id);
    if (at == ranking.end()) at = ranking.insert(ranking.end(), hit);
    const double best_naming = named.at(hit.id);
    at->score = std::max(at->score,
                         std::min(at->score + links * best_naming, kMostOfNaming * best_naming));
  }
  std::ranges::stable_sort(ranking, [](const ChunkHit& a, const ChunkHit& b) {
    if (a.score != b.score) return a.score > b.score;
    return a.id != b.id ? a.id < b.id : a.chunk < b.chunk;
  });
  ranking.resize(limit);
  return {};
}

/// `vector` is that of the question, if the scorer needs one.
Result<std::vector<ChunkHit>> RetrievalImpl::ranked(std::string_view ns,
                                                    const RetrieveRequest& request,
                                                    const std::vector<std::string>& words,
                                                    std::span<const float> vector) const {
  const std::set<std::string> only(request.document_ids.begin(), request.document_ids.end());
  const auto wanted = [&](const std::string& id, const std::string& metadata) {
    return (only.empty() || only.contains(id)) && metadata_matches(metadata, request.metadata);
  };
  const bool filtered = !only.empty() || !request.metadata.empty(),
             by_chunk = request.unit == RetrieveUnit::kChunk;
  const std::size_t limit = request.scorer == RetrieveScorer::kHybrid
                                ? std::max(kFusedResults, kFusedPerResult * request.k)
                                : request.k;
  const LexicalIndex::Filter filter = filtered ? LexicalIndex::Filter(wanted)
                                               : LexicalIndex::Filter();
  LexicalIndex::Terms terms;
  for (const MetadataCondition& condition : request.metadata)
    if (auto one_of = filter_terms(condition); !one_of.empty()) terms.push_back(std::move(one_of));
  const std::shared_lock lock(index_mu_);
  const auto at = indexes_.find(ns);
  if (at == indexes_.end()) return std::vector<ChunkHit>();
  const LexicalIndex& index = at->second;
  std::vector<ChunkHit> rankings[2];
  if (request.scorer != RetrieveScorer::kEmbedding) {
    QUIRE_ASSIGN_OR_RETURN(rankings[0],
                           index.search(words, std::max(limit, kNamingResults),
                                        by_chunk ? LexicalIndex::Unit::kChunk
                                                 : LexicalIndex::Unit::kBestChunkOfDocument,
                                        filter, only.empty() ? nullptr : &only, terms));
    if (request.scorer == RetrieveScorer::kBm25) {
      QUIRE_RETURN_IF_ERROR(follow_titles(ns, index, words, filter, request, rankings[0]));
      rankings[0].resize(std::min(rankings[0].size(), limit));
      return std::move(rankings[0]);
    }
    std::erase_if(rankings[0], [](const ChunkHit& hit) { return hit.score <= 0; });
  }
  EmbeddingIndex::Search search;
  search.limit = limit;
  search.unit = by_chunk ? EmbeddingIndex::Unit::kChunk
                         : EmbeddingIndex::Unit::kBestChunkOfDocument;
  if (filtered) search.filter = wanted;
  // Words are up to date here; vectors of an earlier version are skipped until the new ones are
  // present.
  search.current = [&index](const std::string& id, std::uint64_t version) {
    return index.version(id) == version;
  };
  QUIRE_ASSIGN_OR_RETURN(rankings[1], vectors_->search(ns, vector, search));
  if (request.scorer == RetrieveScorer::kEmbedding) return std::move(rankings[1]);
  std::vector<ChunkHit> both = fused(rankings[0], rankings[1], options_.fusion, request.unit);
  QUIRE_RETURN_IF_ERROR(follow_titles(ns, index, words, filter, request, both));
  both.resize(std::min(both.size(), request.k));
  return both;
}

/// Returns the text of a hit; none: the document has changed since it was indexed.
Result<std::optional<Passage>> RetrievalImpl::passage(std::string_view ns, const ChunkHit& hit,
                                                      RetrieveUnit unit) {
  const auto same = [&hit](const Result<DocumentManifest>& m) {
    return m.ok() && indexed_version(*m) == hit.version && m->status == DocumentStatus::kReady;
  };
  const auto head = store_.get_document(ns, hit.id);
  if (!head.ok() && head.code() != Code::kNotFound) return head.status();
  if (!same(head)) return std::optional<Passage>();
  auto text = store_.get_text(ns, hit.id);
  if (!same(store_.get_document_head(ns, hit.id))) return std::optional<Passage>();
  if (!text.ok()) return text.status();
  Passage p;
  p.document_id = hit.id;
  p.title = head->title;
  p.content_hash = head->content_hash;
  p.chunking = head->chunking;
  p.metadata_json = head->metadata_json.empty() ? "{}" : head->metadata_json;
  p.chunk = hit.chunk;
  p.score = hit.score;
  std::size_t begin = 0, end = text->size();
  if (unit == RetrieveUnit::kChunk) {
    const DocumentChunk& c = head->chunks.at(at(hit.chunk));
    begin = std::min<std::size_t>(c.byte_begin, end);
    end = std::clamp<std::size_t>(c.byte_end, begin, end);
  }
  CodePointCounter counter(*text);
  p.start = counter.at(begin);
  p.end = counter.at(end);
  p.place = place_of(head->marks, begin, end);
  // A whole document may be long.
  p.text = end - begin == text->size() ? std::move(*text) : text->substr(begin, end - begin);
  return std::optional<Passage>(std::move(p));
}

Result<std::vector<Passage>> RetrievalImpl::search(std::string_view ns,
                                                   const RetrieveRequest& asked) {
  RetrieveRequest request = asked;
  if (request.scorer == RetrieveScorer::kAuto) request.scorer = options_.scorer;
  if (stopped_) return Status::unavailable("the service is stopping");
  if (!ready_)
    return Status::unavailable(
        "the index for retrieval is still being built from the stored documents; try again soon");
  if (request.k < 1 || request.k > kMostResults)
    return Status::invalid("k", "k must be 1 to " + std::to_string(kMostResults));
  Stemmer stemmer(options_.language);
  const std::vector<std::string> words = split_words(request.query, stemmer);
  std::vector<float> vector;
  if (request.scorer != RetrieveScorer::kBm25) {
    if (!vectors_)
      return Status::invalid("scorer",
                             "this scorer needs embeddings, which are switched off (none of "
                             "retrieve.encoder, retrieve.embeddings_url and "
                             "retrieve.embeddings is set)");
    QUIRE_ASSIGN_OR_RETURN(vector, vectors_->embed(request.query));
  }
  std::vector<Passage> out;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    catch_up();
    out.clear();
    bool whole = true;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<ChunkHit> hits, ranked(ns, request, words, vector));
    for (const ChunkHit& hit : hits) {
      QUIRE_ASSIGN_OR_RETURN(std::optional<Passage> p, passage(ns, hit, request.unit));
      if (p) {
        out.push_back(std::move(*p));
      } else {
        whole = false;
        changed(ns, hit.id);  // deleted, replaced or expired in between
      }
    }
    if (whole) break;
  }
  return out;
}

}  // namespace

std::unique_ptr<Retrieval> create_retrieval(const RetrievalOptions& options, Store& store,
                                            std::shared_ptr<Embedder> embedder) {
  return std::make_unique<RetrievalImpl>(options, store, std::move(embedder));
}

}  // namespace quire
