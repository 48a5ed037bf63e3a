#include "ingest/search/embedding_index.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "base/log.h"
#include "ingest/search/embed_text.h"

namespace quire {
namespace {

constexpr std::size_t kPage = 100;  // documents per page of a listing
constexpr auto kQuestionTime = std::chrono::seconds(10);
/// The wait after the engine's queue was full.
constexpr auto kRetryAfter = std::chrono::seconds(1);
/// Lists are rebuilt when a namespace has grown by this factor.
constexpr std::int64_t kGrowth = 4;
/// Matches requested in addition, to order equal scores at the end and to skip outdated entries.
constexpr std::size_t kSpareMatches = 32;
/// Memory of an indexed document and of a chunk beside texts and vectors, as containers hold them.
constexpr std::int64_t kDocumentBytes = 192, kChunkBytes = 80;
/// What moves to disk at once, as a part of the limit of memory.
constexpr std::int64_t kMovedPart = 8;

bool comes_before(const ChunkHit& a, const ChunkHit& b) {
  if (a.score != b.score) return a.score > b.score;
  return std::tie(a.id, a.chunk) < std::tie(b.id, b.chunk);
}

}  // namespace

EmbeddingIndex::EmbeddingIndex(const EmbeddingOptions& options, Store& store,
                               std::shared_ptr<Embedder> embedder)
    : options_(options), store_(store), embedder_(std::move(embedder)) {}

EmbeddingIndex::~EmbeddingIndex() { stop(); }

void EmbeddingIndex::start() {
  thread_ = std::thread([this] { work(stop_.get_token()); });
}

void EmbeddingIndex::stop() {
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void EmbeddingIndex::changed(std::string_view ns, std::string_view id) {
  {
    const std::lock_guard lock(mu_);
    changes_.emplace(ns, id);
  }
  wake_.notify_all();
}

EmbeddingStats EmbeddingIndex::stats() const {
  EmbeddingStats out;
  {
    const std::lock_guard lock(mu_);
    out.pending = changes_.size() + missing_.size() + (busy_ ? 1 : 0);
    out.failed = failed_.size();
  }
  const std::shared_lock lock(index_mu_);
  for (const auto& [ns, space] : spaces_) {
    out.documents += space.documents.size();
    out.chunks += space.places.size();
    out.exact = out.exact && (!space.vectors || space.vectors->num_lists() == 1);
  }
  out.memory_bytes = memory_bytes();
  out.disk_bytes = disk_bytes();
  out.left_out = left_out_.size();
  return out;
}

std::int64_t EmbeddingIndex::memory_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [ns, space] : spaces_)
    bytes += space.entry_bytes + (space.vectors ? space.vectors->memory_bytes() : 0);
  return bytes;
}

std::int64_t EmbeddingIndex::disk_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& [ns, space] : spaces_) bytes += space.vectors ? space.vectors->disk_bytes() : 0;
  return bytes;
}

std::int64_t EmbeddingIndex::entry_bytes(std::string_view id, const Document& document) {
  return kDocumentBytes + count_of(id) + count_of(document.metadata_json) +
         kChunkBytes * count_of(document.labels);
}

// -------------------------------------------------------------------------------------------------
// The thread

void EmbeddingIndex::work(const std::stop_token& stop) {
  list_documents(stop);
  DocumentName name;
  Missing missing = Missing::kPutOff;
  bool waiting = false;  // for an embedder that is busy or not to be reached
  while (take(stop, name, missing)) {
    const Status s = look_at(name, missing, stop);
    if (stop.stop_requested()) return;
    if (s.ok()) {
      waiting = false;
      continue;
    }
    std::unique_lock lock(mu_);
    if (s.code() == Code::kResourceExhausted || s.code() == Code::kUnavailable) {
      if (!std::exchange(waiting, true))
        log_info("texts wait to be embedded", {{"reason", s.to_string()}});
      missing_.insert(name);
      busy_ = false;
      wake_.wait_for(lock, stop, kRetryAfter, [] { return false; });
      continue;
    }
    failed_.insert(name);
    lock.unlock();
    log_warning("a document could not be embedded and is not found by its meaning",
                {{"namespace", name.first}, {"document", name.second}, {"reason", s.to_string()}});
    drop(name);
  }
}

void EmbeddingIndex::list_documents(const std::stop_token& stop) {
  for (const NamespaceStats& ns : store_.namespaces()) {
    ListOptions page;
    page.limit = kPage;
    page.filter = [](const DocumentManifest& m) { return m.status == DocumentStatus::kReady; };
    while (!stop.stop_requested()) {
      const auto list = store_.list_documents(ns.name, page);
      if (!list.ok()) {
        log_error(
            "the documents of a namespace cannot be listed and are not found by their meaning",
            {{"namespace", ns.name}, {"reason", list.status().to_string()}});
        break;
      }
      {
        const std::lock_guard lock(mu_);
        for (const DocumentManifest& m : list->documents) changes_.emplace(ns.name, m.id);
      }
      if (!list->has_more || list->documents.empty()) break;
      page.after = list->documents.back().id;
    }
  }
}

/// Takes the next document: first those whose vectors may be in the store, then those that must be
/// computed. Returns false if stopped.
bool EmbeddingIndex::take(const std::stop_token& stop, DocumentName& name, Missing& missing) {
  std::unique_lock lock(mu_);
  busy_ = false;
  if (!wake_.wait(lock, stop, [this] { return !changes_.empty() || !missing_.empty(); }) ||
      stop.stop_requested())
    return false;
  std::set<DocumentName>& from = changes_.empty() ? missing_ : changes_;
  missing = changes_.empty() ? Missing::kCompute : Missing::kPutOff;
  name = std::move(from.extract(from.begin()).value());
  failed_.erase(name);
  busy_ = true;
  return true;
}

/// Gives the index the vectors of the document that the store has now, or removes them.
Status EmbeddingIndex::look_at(const DocumentName& name, Missing missing,
                               const std::stop_token& stop) {
  const auto& [ns, id] = name;
  bool unreadable = false;
  {
    const std::lock_guard lock(mu_);
    unreadable = unreadable_.erase(name) > 0;
  }
  const auto head = store_.get_document_head(ns, id);
  if (head.code() == Code::kNotFound) {
    drop(name);
    return erase_embeddings(store_, ns, id);
  }
  if (!head.ok()) return head.status();
  if (head->status != DocumentStatus::kReady) {
    drop(name);
    return {};
  }
  const Digest made_of = embedding_source(embedder_->fingerprint(), *head);
  if (refresh_entry(name, *head, made_of)) {
    if (unreadable) {
      drop(name);
      const std::unique_lock lock(index_mu_);
      left_out_.insert(name);
    }
    return {};
  }
  drop(name);  // the vectors of an older text
  if (const auto stored = store_.get_meta(embedding_record_name(ns, id)); stored.ok()) {
    const auto record = decode_embeddings(*stored);
    if (record.ok() && record->made_of == made_of && record->num_chunks() == head->chunks.size())
      return enter(name, *head, *record);
  }
  if (missing == Missing::kPutOff) {
    const std::lock_guard lock(mu_);
    missing_.insert(name);
    return {};
  }
  const auto text = store_.get_text(ns, id);
  if (!text.ok() && text.code() != Code::kNotFound) return text.status();
  const auto again = store_.get_document_head(ns, id);
  // A change notification will follow.
  if (!text.ok() || !again.ok() || embedding_source(embedder_->fingerprint(), *again) != made_of)
    return {};
  QUIRE_ASSIGN_OR_RETURN(const EmbeddingRecord record, compute(*head, *text, made_of, stop));
  const Status kept = store_.put_derived(embedding_record_name(ns, id), encode_embeddings(record));
  if (kept.ok()) {
    unkept_ = false;
    // Enters the record if the document is unchanged, erases it if the document is gone.
    changed(ns, id);
    return {};
  }
  if (!std::exchange(unkept_, true))
    log_warning("embeddings cannot be stored, so a restart computes them again",
                {{"reason", kept.to_string()}});
  const auto now = store_.get_document_head(ns, id);
  // A change notification will follow.
  if (!now.ok() || now->status != DocumentStatus::kReady ||
      embedding_source(embedder_->fingerprint(), *now) != made_of)
    return {};
  return enter(name, *now, record);
}

/// Updates what else is known about the document. Returns true if its vectors are present.
bool EmbeddingIndex::refresh_entry(const DocumentName& name, const DocumentManifest& head,
                                   const Digest& made_of) {
  const std::unique_lock lock(index_mu_);
  const auto space = spaces_.find(name.first);
  if (space == spaces_.end()) return false;
  const auto at = space->second.documents.find(name.second);
  if (at == space->second.documents.end() || at->second.made_of != made_of) return false;
  space->second.entry_bytes -= entry_bytes(name.second, at->second);
  at->second.version = indexed_version(head);
  at->second.metadata_json = head.metadata_json;
  space->second.entry_bytes += entry_bytes(name.second, at->second);
  return true;
}

Result<EmbeddingRecord> EmbeddingIndex::compute(const DocumentManifest& head, std::string_view text,
                                                const Digest& made_of,
                                                const std::stop_token& stop) {
  EmbeddingRecord record;
  record.made_of = made_of;
  std::vector<std::string> texts;
  for (const DocumentChunk& c : head.chunks) texts.push_back(embedding_text(head, c, text));
  QUIRE_ASSIGN_OR_RETURN(const auto vectors, embedder_->embed(texts, EmbedRole::kText, {stop}));
  for (const auto& vector : vectors)
    record.dimension = std::max(record.dimension, static_cast<std::uint32_t>(vector.size()));
  // An all-zero row means that nothing is to be found or computed again.
  if (record.dimension == 0) record.dimension = 1;
  for (const auto& vector : vectors) {
    for (std::uint32_t i = 0; i < record.dimension; ++i)
      record.values.push_back(i < vector.size() ? f32_to_f16(vector[i]) : std::uint16_t{0});
  }
  return record;
}

Status EmbeddingIndex::enter(const DocumentName& name, const DocumentManifest& head,
                             const EmbeddingRecord& record) {
  std::vector<std::uint16_t> vectors;
  std::vector<std::int32_t> chunks;
  for (std::size_t chunk = 0; chunk < record.num_chunks(); ++chunk) {
    const std::span<const std::uint16_t> values(record.values.data() + chunk * record.dimension,
                                                record.dimension);
    if (std::all_of(values.begin(), values.end(),
                    [](std::uint16_t v) { return f16_to_f32(v) == 0; }))
      continue;
    if (!std::all_of(values.begin(), values.end(),
                     [](std::uint16_t v) { return std::isfinite(f16_to_f32(v)); }))
      continue;
    chunks.push_back(static_cast<std::int32_t>(chunk));
    vectors.insert(vectors.end(), values.begin(), values.end());
  }
  Status room;
  {
    const std::unique_lock lock(index_mu_);
    left_out_.erase(name);
    QUIRE_RETURN_IF_ERROR(
        add(name.first, spaces_[name.first], name.second, head, record, chunks, vectors));
    room = make_room();
  }
  if (room.ok()) {
    sort_into_lists(name.first);
  } else {
    drop(name);
    leave_out(name, room);
  }
  return {};
}

/// Moves vectors to disk while all together take too much memory. index_mu_ is held.
Status EmbeddingIndex::make_room() {
  const std::int64_t most = options_.max_bytes, before = disk_bytes();
  for (std::int64_t used = 0; most > 0 && (used = memory_bytes()) > most;) {
    VectorIndex* largest = nullptr;
    for (auto& [ns, space] : spaces_) {
      if (space.vectors && (!largest || space.vectors->movable_bytes() > largest->movable_bytes()))
        largest = &*space.vectors;
    }
    const std::int64_t on_disk = disk_bytes();
    if (options_.max_disk_bytes <= 0 || !largest || largest->movable_bytes() == 0)
      return Status::exhausted(std::to_string(used) + " bytes in memory, " +
                               std::to_string(on_disk) + " on disk");
    const Status moved = largest->move_to_disk(store_.options().path,
                                               std::max(used - most, most / kMovedPart),
                                               options_.max_disk_bytes - on_disk);
    if (!moved.ok() && memory_bytes() > most) return moved;
  }
  if (before == 0 && disk_bytes() > 0)
    log_info("a part of the embeddings lies on disk", {{"bytes", std::to_string(disk_bytes())}});
  return {};
}

/// Has the document not found by its meaning until it changes. A full index says so once.
void EmbeddingIndex::leave_out(const DocumentName& name, const Status& reason) {
  const std::unique_lock lock(index_mu_);
  if (left_out_.empty() || reason.code() != Code::kResourceExhausted) {
    log_warning(
        reason.code() == Code::kResourceExhausted
            ? "there is no room for more embeddings: further documents are not found by their "
              "meaning; raise retrieve.max_embedding_bytes or retrieve.max_embedding_disk_bytes "
              "and start again"
            : "a document is not found by its meaning until it changes or the service starts again",
        {{"namespace", name.first}, {"document", name.second}, {"reason", reason.to_string()}});
  }
  left_out_.insert(name);
}

/// Makes the index of a namespace, with the lists that it had before a restart.
Result<VectorIndex> EmbeddingIndex::make_vectors(std::string_view ns,
                                                 std::uint32_t dimension) const {
  if (const auto stored = store_.get_meta(embedding_lists_name(ns)); stored.ok()) {
    const auto lists = decode_embeddings(*stored);
    if (lists.ok() && lists->dimension == dimension && lists->made_of == embedder_->fingerprint()) {
      if (auto made = VectorIndex::make(dimension, lists->values); made.ok()) return made;
    }
  }
  return VectorIndex::make(dimension);
}

Status EmbeddingIndex::add(std::string_view ns, Space& space, const std::string& id,
                           const DocumentManifest& head, const EmbeddingRecord& record,
                           std::span<const std::int32_t> chunks,
                           std::span<const std::uint16_t> vectors) {
  if (!space.vectors && !chunks.empty()) {
    QUIRE_ASSIGN_OR_RETURN(space.vectors, make_vectors(ns, record.dimension));
    const std::int64_t lists = space.vectors->num_lists();
    space.sorted_size = lists > 1 ? lists * lists : 0;
  }
  if (!chunks.empty() && space.vectors->dimension() != record.dimension)
    return Status::corruption("its embeddings have another length than those of other documents");
  const auto at = space.documents.try_emplace(id).first;
  Document& document = at->second;
  document.version = indexed_version(head);
  document.metadata_json = head.metadata_json;
  document.made_of = record.made_of;
  for (const std::int32_t chunk : chunks) {
    space.places[space.next_label] = {&at->first, &document, chunk};
    document.labels.push_back(space.next_label++);
  }
  space.entry_bytes += entry_bytes(id, document);
  if (chunks.empty()) return {};
  const Status added = space.vectors->add(document.labels, vectors);
  if (!added.ok()) (void)remove(space, id);  // the first failure is reported
  return added;
}

/// Returns whether a namespace has become large, or has grown or shrunk much since its lists were
/// made. What it holds while the store is read says nothing yet.
bool EmbeddingIndex::wants_other_lists(const Space& space) const {
  if (!space.vectors) return false;
  const std::int64_t size = space.vectors->size();
  if (space.vectors->num_lists() == 1) return size > options_.exact_vectors;
  if (size >= kGrowth * space.sorted_size) return true;
  if (kGrowth * size >= space.sorted_size) return false;
  const std::lock_guard lock(mu_);
  return changes_.empty();
}

/// Makes the lists that the namespace should have. The old ones serve searches in the meantime.
void EmbeddingIndex::sort_into_lists(const std::string& ns) {
  Space& space = spaces_.find(ns)->second;  // only this thread changes it
  if (!wants_other_lists(space)) return;
  const std::int64_t size = space.vectors->size();
  const auto plan = space.vectors->plan_lists(
      size <= options_.exact_vectors
          ? 1
          : static_cast<std::int64_t>(std::sqrt(static_cast<double>(size))));
  if (!plan.ok()) {
    log_warning("embeddings stay in the lists they are in",
                {{"namespace", ns}, {"reason", plan.status().to_string()}});
    return;
  }
  EmbeddingRecord lists{.made_of = embedder_->fingerprint(),
                        .dimension = static_cast<std::uint32_t>(space.vectors->dimension())};
  {
    const std::unique_lock lock(index_mu_);
    space.vectors->regroup(**plan);
    space.sorted_size = size;
    lists.values = space.vectors->centres();
  }
  // Without the record a restart makes the lists anew, which costs time only.
  if (const Status s = store_.put_derived(embedding_lists_name(ns), encode_embeddings(lists));
      !s.ok())
    log_warning("the lists of embeddings could not be stored",
                {{"namespace", ns}, {"reason", s.to_string()}});
}

void EmbeddingIndex::drop(const DocumentName& name) {
  std::unique_lock lock(index_mu_);
  left_out_.erase(name);
  const auto at = spaces_.find(name.first);
  if (at == spaces_.end()) return;
  if (const Status s = remove(at->second, name.second); !s.ok()) {
    log_error("the room of embeddings on disk could not be given back",
              {{"namespace", name.first}, {"document", name.second}, {"reason", s.to_string()}});
  }
  if (!at->second.documents.empty()) return;
  const bool had_lists = at->second.vectors && at->second.vectors->num_lists() > 1;
  spaces_.erase(at);
  lock.unlock();
  if (had_lists) (void)store_.delete_meta(embedding_lists_name(name.first));  // room, no more
}

Status EmbeddingIndex::remove(Space& space, std::string_view id) {
  const auto at = space.documents.find(id);
  if (at == space.documents.end()) return {};
  space.entry_bytes -= entry_bytes(id, at->second);
  const std::vector<std::int64_t> labels = std::move(at->second.labels);
  for (const std::int64_t label : labels) space.places.erase(label);
  space.documents.erase(at);
  return space.vectors ? space.vectors->remove(labels) : Status();
}

// -------------------------------------------------------------------------------------------------
// Searching

Result<std::vector<float>> EmbeddingIndex::embed(std::string_view question) {
  const std::string text(question);
  QUIRE_ASSIGN_OR_RETURN(
      auto vectors,
      embedder_->embed({&text, 1}, EmbedRole::kQuestion,
                       {stop_.get_token(), std::chrono::steady_clock::now() + kQuestionTime}));
  return std::move(vectors.front());
}

/// Has the thread leave out documents whose vectors a search could not read. index_mu_ is held.
void EmbeddingIndex::report_unreadable(std::string_view ns, const Space& space,
                                       std::span<const std::int64_t> labels) const {
  if (labels.empty()) return;
  std::size_t fresh = 0;
  {
    const std::lock_guard lock(mu_);
    for (const std::int64_t label : labels) {
      const auto place = space.places.find(label);
      if (place == space.places.end()) continue;
      const DocumentName name(ns, *place->second.id);
      if (unreadable_.insert(name).second) ++fresh;
      changes_.insert(name);
    }
  }
  if (fresh > 0) {
    log_warning(
        "embeddings on disk cannot be read: their documents are not found by their meaning until "
        "they change or the service starts again",
        {{"namespace", std::string(ns)}, {"documents", std::to_string(fresh)}});
  }
  wake_.notify_all();
}

Result<std::vector<ChunkHit>> EmbeddingIndex::search(std::string_view ns,
                                                     std::span<const float> vector,
                                                     const Search& search) const {
  std::vector<ChunkHit> out;
  const std::shared_lock lock(index_mu_);
  const auto at = spaces_.find(ns);
  if (at == spaces_.end() || !at->second.vectors) return out;
  const Space& space = at->second;
  if (count_of(vector) != space.vectors->dimension())
    return Status::io("the embedding of the question has " + std::to_string(vector.size()) +
                      " values, and those of the texts have " +
                      std::to_string(space.vectors->dimension()));
  std::set<const Document*> wanted;
  VectorIndex::Filter filter;
  if (search.filter) {
    for (const auto& [id, document] : space.documents) {
      if (search.filter(id, document.metadata_json)) wanted.insert(&document);
    }
    filter = [&](std::int64_t label) {
      const auto place = space.places.find(label);
      return place != space.places.end() && wanted.contains(place->second.document);
    };
  }
  const auto all = to_size(space.vectors->size());
  // Several chunks of one document count once, and outdated ones not at all, so the search requests
  // more until there are enough.
  for (std::size_t asked = search.limit + kSpareMatches;; asked *= 4) {
    QUIRE_ASSIGN_OR_RETURN(const VectorIndex::Found found,
                           space.vectors->search(vector, asked, filter));
    report_unreadable(ns, space, found.unreadable);
    out.clear();
    std::set<const Document*> seen;
    for (const VectorMatch& match : found.matches) {
      const auto place = space.places.find(match.label);
      if (place == space.places.end()) continue;
      const Place& p = place->second;
      if (search.current && !search.current(*p.id, p.document->version)) continue;
      if (search.unit == Unit::kBestChunkOfDocument && !seen.insert(p.document).second) continue;
      out.push_back({*p.id, p.document->version, p.chunk, double{match.score}});
    }
    if (out.size() >= search.limit || asked >= all || found.matches.size() < std::min(asked, all))
      break;
  }
  std::sort(out.begin(), out.end(), comes_before);
  out.resize(std::min(out.size(), search.limit));
  return out;
}

}  // namespace quire
