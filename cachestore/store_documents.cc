// This file implements the document half of StoreImpl.
#include <algorithm>
#include <cstdlib>
#include <new>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

std::string use_key(std::string_view ns, std::string_view id) {
  return catalog_key(kHeadKind, ns, id);
}

Status no_document(std::string_view ns, std::string_view id) {
  return Status::not_found("there is no document '" + std::string(id) + "' in namespace '" +
                           std::string(ns) + "'");
}

Status check_version(const CommitOptions& options, std::uint64_t version) {
  if (!options.expected_version || *options.expected_version == version) return {};
  if (*options.expected_version == 0)
    return Status::precondition("the document exists already (version " + std::to_string(version) +
                                ")");
  return Status::precondition("the document has version " + std::to_string(version) + ", not " +
                              std::to_string(*options.expected_version));
}

/// A document that was deleted and posted anew begins at version 1 again.
bool is_same_version(const DocumentManifest& a, const DocumentManifest& b) {
  return a.version == b.version && a.created_ms == b.created_ms && a.content_hash == b.content_hash;
}

constexpr std::size_t kMaxPendingUses = 4096, kMaxDoubts = 4096;
/// How long documents of a shared catalog that have run out are deleted at a time.
constexpr std::chrono::seconds kExpiryTime{5};

}  // namespace

StoreImpl::DocumentLock::DocumentLock(StoreImpl& store, std::string_view ns, std::string_view id)
    : store_(store), ns_(ns), id_(id), key_(catalog_key(kHeadKind, ns, id)) {
  bool doubtful = false;
  {
    std::unique_lock lock(store_.mu_);
    store_.changed_.wait(lock, [this] { return !store_.busy_.contains(key_); });
    store_.busy_.insert(key_);
    doubtful = store_.doubts_.contains(key_);
  }
  if (!doubtful) return;
  try {
    store_.settle(ns_, id_);
  } catch (const std::bad_alloc&) {  // it stays in doubt, and changes of it are refused
    log_warning("a document could not be compared with its record for want of memory",
                {{"namespace", ns_}, {"document_id", id_}});
  }
}

StoreImpl::DocumentLock::~DocumentLock() {
  {
    std::lock_guard lock(store_.mu_);
    store_.busy_.erase(key_);
  }
  store_.changed_.notify_all();
  std::shared_lock watching(store_.watcher_mu_);
  if (store_.watcher_) store_.watcher_(ns_, id_);
}

void StoreImpl::doubt(const std::string& key, const DocumentManifest* counted, const Status& why) {
  const std::lock_guard lock(mu_);
  if (doubts_.size() >= kMaxDoubts && !doubts_.contains(key)) {
    if (!std::exchange(doubts_lost_, true))
      log_warning(
          "too many changes of documents failed: numbers of documents may be wrong until "
          "the next start",
          {});
    return;
  }
  const auto [it, is_new] = doubts_.try_emplace(key);
  if (is_new && counted != nullptr) it->second.counted = *counted;
  it->second.disk_full = why.code() == Code::kResourceExhausted;
}

void StoreImpl::trust(const std::string& key) {
  const std::lock_guard lock(mu_);
  doubts_.erase(key);
}

Status StoreImpl::check_settled(const std::string& key) {
  const std::lock_guard lock(mu_);
  const auto it = doubts_.find(key);
  if (it == doubts_.end()) return {};
  const std::string failed =
      "an earlier change of the document failed, and the disk cannot tell "
      "yet whether it was made; ";
  return it->second.disk_full
             ? Status::exhausted("the disk is full: " + failed + "free some space and try again")
             : Status::io(failed + "try again");
}

void StoreImpl::settle(std::string_view ns, std::string_view id) {
  const std::string key = catalog_key(kHeadKind, ns, id);
  std::optional<DocumentManifest> counted;
  {
    const std::lock_guard lock(mu_);
    const auto it = doubts_.find(key);
    if (it == doubts_.end()) return;
    counted = it->second.counted;
  }
  if (const Status recovered = disk_->recover(); !recovered.ok()) {
    const std::lock_guard lock(mu_);
    if (const auto it = doubts_.find(key); it != doubts_.end())
      it->second.disk_full = recovered.code() == Code::kResourceExhausted;
    return;
  }
  const auto head = read_stored_head(ns, id);
  if (!head.ok() && head.code() != Code::kNotFound && head.code() != Code::kCorruption) return;
  const bool same = head.code() == Code::kCorruption ||  // it stays counted until it is replaced
                    (counted ? head.ok() && is_same_version(*counted, *head) &&
                                   counted->companions == head->companions
                             : !head.ok());
  if (!same) {
    log_warning("a change that was refused for an error of the disk is in the record after all",
                {{"namespace", std::string(ns)}, {"document_id", std::string(id)}});
    // First what is there, so that nothing is freed that both name.
    if (head.ok()) {
      segments_->add_refs(*head);
      count_document(*head, 1);
    }
    if (counted) {
      count_document(*counted, -1);
      release_keys(segment_keys(*counted), counted->pinned);
    }
    expiries_.set(key, head.ok() ? head->effective_expiry_ms() : std::nullopt);
  }
  trust(key);
}

void StoreImpl::settle_all() {
  std::vector<std::string> keys;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [key, doubt] : doubts_) keys.push_back(key);
  }
  if (keys.empty() || !disk_->recover().ok()) return;
  for (const std::string& key : keys) {
    const auto split = key.find('\0');
    const DocumentLock settles(*this, key.substr(1, split - 1), key.substr(split + 1));
    if (!check_settled(key).ok()) return;
  }
}

void StoreImpl::watch_documents(DocumentWatcher watcher) {
  std::unique_lock lock(watcher_mu_);
  watcher_ = std::move(watcher);
}

StoreImpl::Use StoreImpl::pending_use(std::string_view key) {
  std::lock_guard lock(mu_);
  const auto it = uses_.find(std::string(key));
  return it == uses_.end() ? Use() : it->second;
}

void StoreImpl::add_pending_use(std::string_view key, DocumentManifest* m) {
  const Use use = pending_use(key);
  m->hits += use.hits - use.in_head(m->hits);
  m->last_used_ms = std::max(m->last_used_ms, use.last_ms);
}

Result<DocumentManifest> StoreImpl::read_stored_head(std::string_view ns, std::string_view id) {
  auto bytes = disk_->get(Family::kCatalog, catalog_key(kHeadKind, ns, id));
  if (bytes.code() == Code::kNotFound) return no_document(ns, id);
  if (!bytes.ok()) return bytes.status();
  auto m = record::decode_head(*bytes);
  if (m.ok() && (m->ns != ns || m->id != id))
    m = Status::corruption("a stored document record is under the wrong key");
  if (!m.ok()) {
    ++integrity_failures_;
    return m.status().with_context("document '" + std::string(id) + "'");
  }
  return m;
}

Result<DocumentManifest> StoreImpl::read_head(std::string_view ns, std::string_view id) {
  // A writer forgets uses once it has written a head with them. Whoever looks only after reading
  // the head before that one finds them nowhere, and takes a document in use for expired.
  const std::string key = catalog_key(kHeadKind, ns, id);
  const std::int64_t used_ms = pending_use(key).last_ms;
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest m, read_stored_head(ns, id));
  add_pending_use(key, &m);
  m.last_used_ms = std::max(m.last_used_ms, used_ms);
  return m;
}

StoreImpl::TakenUse::TakenUse(StoreImpl& store, const std::string& key)
    : store_(store), key_(key), use_(store.pending_use(key)) {}

void StoreImpl::TakenUse::add_to(DocumentManifest* m) const {
  m->last_used_ms = std::max(m->last_used_ms, use_.last_ms);
  std::lock_guard lock(store_.mu_);
  const auto it = store_.uses_.find(key_);
  if (it == store_.uses_.end()) return;
  const std::uint64_t in_head = std::min(use_.hits, it->second.in_head(m->hits));
  if (!it->second.before) it->second.before = m->hits;
  m->hits += use_.hits - in_head;
}

void StoreImpl::TakenUse::set_written() {
  std::lock_guard lock(store_.mu_);
  const auto it = store_.uses_.find(key_);
  if (it == store_.uses_.end()) return;
  Use& pending = it->second;
  pending.hits -= std::min(pending.hits, use_.hits);
  pending.before.reset();
  if (pending.hits == 0) store_.uses_.erase(it);
}

Result<DocumentManifest> StoreImpl::commit_document(
    DocumentManifest m, std::optional<std::string_view> text,
    std::span<const SegmentHandle> /*held by the caller: they stay findable*/,
    const CommitOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(check_catalog());
  if (text) m.text_bytes = text->size();
  const std::string ns = m.ns, id = m.id;
  const DocumentLock lock(*this, ns, id);
  return in_turn(ns, id, [&](bool* late) {
    return commit_version(catalog_ ? m : std::move(m), text, options, late);
  });
}

Result<DocumentManifest> StoreImpl::commit_version(DocumentManifest m,
                                                   std::optional<std::string_view> text,
                                                   const CommitOptions& options, bool* late) {
  const std::string key = catalog_key(kHeadKind, m.ns, m.id);
  QUIRE_RETURN_IF_ERROR(check_settled(key));  // before other replicas learn of it
  TakenUse use(*this, key);
  auto old = read_stored_head(m.ns, m.id);
  if (old.ok()) use.add_to(&*old);
  if (!old.ok() && old.code() != Code::kNotFound && old.code() != Code::kCorruption)
    return old.status();
  const std::int64_t now = now_ms();
  const bool visible = old.ok() && !is_expired(*old, now);
  QUIRE_RETURN_IF_ERROR(check_version(options, visible ? old->version : 0));
  std::vector<RecordWrite> batch;
  std::string waited;
  const bool keeps_text = !text && options.waiting_text.empty();
  m.text_name.clear();
  if (!options.waiting_text.empty()) {
    if (text) return Status::invalid("text", "give a text or the name of one that waits");
    QUIRE_RETURN_IF_ERROR(take_waiting_text(options.waiting_text, old, &m, &batch));
    if (catalog_) {
      QUIRE_ASSIGN_OR_RETURN(waited, get_waiting_text(options.waiting_text));
      text = waited;
    }
  } else if (text) {
    batch.push_back(
        {Family::kCatalog, catalog_key(kTextKind, m.ns, m.id), record::encode_text(*text)});
  } else {
    if (!visible)
      return Status::precondition("document '" + m.id +
                                  "' has no stored text: commit it with its text");
    m.text_bytes = old->text_bytes;
    m.text_name = old->text_name;
  }
  if (old.ok() && old->text_name != m.text_name)
    batch.push_back({Family::kCatalog, text_key(*old), std::nullopt});

  m.version = old.ok() ? old->version + 1 : 1;
  m.created_ms = visible ? old->created_ms : now;
  m.updated_ms = now;
  m.ttl_start_ms = keeps_text ? old->ttl_start_ms : now;
  m.hits = visible ? old->hits : 0;
  m.last_used_ms = visible ? old->last_used_ms : 0;
  m.num_tokens = 0;
  for (auto& c : m.chunks) {
    c.num_tokens = static_cast<std::uint32_t>(c.token_ids.size());
    m.num_tokens += c.token_ids.size();
  }
  QUIRE_RETURN_IF_ERROR(validate_manifest(m));
  std::string tokens = record::encode_tokens(m);
  QUIRE_RETURN_IF_ERROR(check_room(m, tokens.size() + (text ? text->size() : 0)));
  QUIRE_RETURN_IF_ERROR(share_version(m, catalog_ ? std::optional(tokens) : std::nullopt, text,
                                      &batch, late, options.fence));
  batch.push_back({Family::kCatalog, catalog_key(kTokensKind, m.ns, m.id), std::move(tokens)});
  QUIRE_ASSIGN_OR_RETURN(const auto fresh,
                         write_version(old.ok() ? &*old : nullptr, m, std::move(batch)));
  use.set_written();
  if (remote_) {
    // Companions stay here: nobody recalls them.
    std::unordered_set<ContextKey, DigestHash> written;
    for (const auto& info : fresh) written.insert(info->key);
    std::vector<ContextKey> shared;
    for (const auto& c : m.chunks)
      if (written.erase(c.key) > 0) shared.push_back(c.key);
    share(shared);
  }
  return m;
}

Result<std::vector<std::shared_ptr<const SegmentInfo>>> StoreImpl::write_version(
    const DocumentManifest* old, const DocumentManifest& m, std::vector<RecordWrite> batch,
    Sync sync) {
  const std::string key = catalog_key(kHeadKind, m.ns, m.id);
  QUIRE_RETURN_IF_ERROR(check_settled(key));
  // References are added before the write, so that none of these segments is freed meanwhile.
  const auto keys = segment_keys(m);
  segments_->add_refs(m);
  auto fresh = segments_->uncommitted(keys);
  batch.push_back({Family::kCatalog, key, record::encode_head(m)});
  for (const auto& info : fresh)
    batch.push_back(
        {Family::kCatalog, segment_record_key(info->id), record::encode_segment(*info)});
  change_terms(old, &m, &batch);
  // Records of segments never go without the values that they name.
  if (!fresh.empty()) sync = Sync::kYes;
  bool reached = false;
  if (Status s = write_with_room(batch, "document '" + m.id + "'", sync, &reached); !s.ok()) {
    release_keys(keys, m.pinned);
    if (reached) doubt(key, old, s);
    return s;
  }
  trust(key);
  for (const auto& info : fresh) segments_->set_committed(info->id);
  if (old != nullptr) {
    release_keys(segment_keys(*old), old->pinned);
    count_document(*old, -1);
  }
  count_document(m, 1);
  expiries_.set(key, m.effective_expiry_ms());
  return fresh;
}

/// Gives the document the text that waits under `name`. A commit that is repeated after a crash
/// finds that the document has it already.
Status StoreImpl::take_waiting_text(const std::string& name, const Result<DocumentManifest>& old,
                                    DocumentManifest* m, std::vector<RecordWrite>* batch) {
  m->text_name = name;
  const std::string waiting = named_key(kWaitingKind, name);
  const auto record = disk_->get(Family::kCatalog, waiting);
  if (record.code() == Code::kNotFound) {
    if (!old.ok() || old->text_name != name)
      return Status::precondition("no text waits under the name '" + name + "'");
    m->text_bytes = old->text_bytes;
    return {};
  }
  QUIRE_RETURN_IF_ERROR(record.status());
  QUIRE_ASSIGN_OR_RETURN(const std::string bytes, record::decode_opaque(*record));
  m->text_bytes = std::strtoull(bytes.c_str(), nullptr, 10);
  batch->push_back({Family::kCatalog, waiting, std::nullopt});
  return {};
}

Result<DocumentManifest> StoreImpl::get_document_head(std::string_view ns, std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest m, read_head(ns, id));
  if (is_expired(m, now_ms())) return no_document(ns, id);
  return m;
}

Result<DocumentManifest> StoreImpl::get_document(std::string_view ns, std::string_view id) {
  // Head and tokens are two records: read again if a writer changed them in between.
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest m, get_document_head(ns, id));
  for (int attempt = 0; attempt < 100; ++attempt) {
    auto bytes = disk_->get(Family::kCatalog, catalog_key(kTokensKind, ns, id));
    QUIRE_ASSIGN_OR_RETURN(DocumentManifest again, get_document_head(ns, id));
    if (!is_same_version(again, m)) {
      m = std::move(again);
      continue;
    }
    Status s = bytes.ok() ? record::decode_tokens(*bytes, &m) : bytes.status();
    if (s.ok()) return m;
    if (s.code() == Code::kNotFound) s = Status::corruption("the token record is missing");
    if (s.code() == Code::kCorruption) ++integrity_failures_;
    return s.with_context("document '" + std::string(id) + "'");
  }
  return Status::unavailable("document '" + std::string(id) +
                             "' changes faster than it can be read");
}

Result<std::string> StoreImpl::get_text(std::string_view ns, std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest m, get_document_head(ns, id));
  auto bytes = disk_->get(Family::kCatalog, text_key(m));
  while (bytes.code() == Code::kNotFound) {
    // Deleted or replaced in between; the text of another version lies elsewhere.
    QUIRE_ASSIGN_OR_RETURN(DocumentManifest now, get_document_head(ns, id));
    if (is_same_version(now, m)) {
      if (m.status != DocumentStatus::kReady) return no_document(ns, id);
      ++integrity_failures_;
      return Status::corruption("document '" + std::string(id) + "': its text is missing");
    }
    m = std::move(now);
    bytes = disk_->get(Family::kCatalog, text_key(m));
  }
  if (!bytes.ok()) return bytes.status();
  auto text = record::decode_text(*bytes);
  if (!text.ok()) {
    ++integrity_failures_;
    return text.status().with_context("document '" + std::string(id) + "'");
  }
  return text;
}

Status StoreImpl::store_update(const DocumentManifest& old, const DocumentManifest& next,
                               std::vector<RecordWrite> batch) {
  const std::string key = catalog_key(kHeadKind, next.ns, next.id);
  QUIRE_RETURN_IF_ERROR(check_settled(key));
  const auto keys = segment_keys(next);
  segments_->add_refs(next);
  batch.push_back({Family::kCatalog, key, record::encode_head(next)});
  change_terms(&old, &next, &batch);
  bool reached = false;
  if (Status s = write_with_room(batch, "document '" + next.id + "'", Sync::kYes, &reached);
      !s.ok()) {
    release_keys(keys, next.pinned);
    if (reached) doubt(key, &old, s);
    return s;
  }
  trust(key);
  release_keys(segment_keys(old), old.pinned);
  count_document(old, -1);
  count_document(next, 1);
  expiries_.set(key, next.effective_expiry_ms());
  return {};
}

Result<DocumentManifest> StoreImpl::update_document(
    std::string_view ns, std::string_view id, const std::function<Status(DocumentManifest&)>& edit,
    const CommitOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  QUIRE_RETURN_IF_ERROR(check_catalog());
  const DocumentLock lock(*this, ns, id);
  return in_turn(ns, id, [&](bool* late) { return update_version(ns, id, edit, options, late); });
}

Result<DocumentManifest> StoreImpl::update_version(
    std::string_view ns, std::string_view id, const std::function<Status(DocumentManifest&)>& edit,
    const CommitOptions& options, bool* late) {
  QUIRE_RETURN_IF_ERROR(check_settled(catalog_key(kHeadKind, ns, id)));
  TakenUse use(*this, catalog_key(kHeadKind, ns, id));
  QUIRE_RETURN_IF_ERROR(look_for(ns, id));
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest old, read_stored_head(ns, id));
  use.add_to(&old);
  if (is_expired(old, now_ms())) return no_document(ns, id);
  QUIRE_RETURN_IF_ERROR(check_version(options, old.version));
  DocumentManifest edited = old;
  QUIRE_RETURN_IF_ERROR(edit(edited));
  DocumentManifest next = old;  // copies only the fields that may change
  next.version = old.version + 1;
  next.updated_ms = now_ms();
  next.title = std::move(edited.title);
  next.metadata_json = std::move(edited.metadata_json);
  next.status = edited.status;
  next.error_code = std::move(edited.error_code);
  next.error_message = std::move(edited.error_message);
  next.pinned = edited.pinned;
  next.ttl_seconds = edited.ttl_seconds;
  next.ttl_anchor = edited.ttl_anchor;
  next.ttl_start_ms = edited.ttl_start_ms;
  next.expires_at_ms = edited.expires_at_ms;
  next.job_id = std::move(edited.job_id);
  QUIRE_RETURN_IF_ERROR(validate_manifest(next));
  QUIRE_RETURN_IF_ERROR(check_room(next, 0));
  std::vector<RecordWrite> batch;
  QUIRE_RETURN_IF_ERROR(
      share_version(next, std::nullopt, std::nullopt, &batch, late, options.fence));
  QUIRE_RETURN_IF_ERROR(store_update(old, next, std::move(batch)));
  use.set_written();
  return next;
}

Status StoreImpl::add_companions(const DocumentManifest& document,
                                 std::span<const ContextKey> keys) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  const std::string &ns = document.ns, &id = document.id;
  const DocumentLock lock(*this, ns, id);
  TakenUse use(*this, catalog_key(kHeadKind, ns, id));
  QUIRE_ASSIGN_OR_RETURN(DocumentManifest old, read_stored_head(ns, id));
  use.add_to(&old);
  if (is_expired(old, now_ms())) return no_document(ns, id);
  if (!is_same_version(old, document))
    return Status::precondition("the document '" + id + "' has changed since it was read");
  DocumentManifest next = old;
  const auto named = segment_keys(old);
  std::unordered_set<ContextKey, DigestHash> known(named.begin(), named.end());
  for (const ContextKey& k : keys)
    if (!k.is_zero() && known.insert(k).second) next.companions.push_back(k);
  if (next.companions.size() == old.companions.size()) return {};
  QUIRE_RETURN_IF_ERROR(validate_manifest(next));
  QUIRE_RETURN_IF_ERROR(store_update(old, next));
  use.set_written();
  return {};
}

Status StoreImpl::remove_document(std::string_view ns, std::string_view id,
                                  std::optional<std::int64_t> if_expired_at,
                                  const CommitOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_catalog());
  const DocumentLock lock(*this, ns, id);
  const Status s = in_turn(
      ns, id, [&](bool* late) { return remove_version(ns, id, if_expired_at, options, late); });
  // The state that is to be deleted need not fit here before.
  if (!catalog_ || s.code() != Code::kResourceExhausted) return s;
  return remove_unseen(ns, id, if_expired_at, options);
}

Status StoreImpl::remove_version(std::string_view ns, std::string_view id,
                                 std::optional<std::int64_t> if_expired_at,
                                 const CommitOptions& options, bool* late) {
  QUIRE_RETURN_IF_ERROR(check_settled(catalog_key(kHeadKind, ns, id)));
  if (!if_expired_at) QUIRE_RETURN_IF_ERROR(look_for(ns, id));
  const auto old = read_head(ns, id);
  // A damaged document can still be deleted
  if (!old.ok() && old.code() != Code::kCorruption) return old.status();
  if (old.ok() && !if_expired_at && !is_expired(*old, now_ms()))
    QUIRE_RETURN_IF_ERROR(check_version(options, old->version));
  if (if_expired_at && (!old.ok() || !is_expired(*old, *if_expired_at))) return no_document(ns, id);
  QUIRE_RETURN_IF_ERROR(share_removal(ns, id, if_expired_at.has_value(), late));
  return remove_records(ns, id, old);
}

Status StoreImpl::remove_unseen(std::string_view ns, std::string_view id,
                                std::optional<std::int64_t> if_expired_at,
                                const CommitOptions& options) {
  const CatalogName name{std::string(ns), std::string(id)};
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const auto found, catalog_->heads({&name, 1}));
    const auto old = read_head(ns, id);
    if (found.empty()) {
      if (old.code() != Code::kNotFound) QUIRE_RETURN_IF_ERROR(remove_records(ns, id, old));
      return no_document(ns, id);
    }
    QUIRE_ASSIGN_OR_RETURN(const DocumentManifest there, record::decode_head(found[0].head));
    if (!if_expired_at && !is_expired(there, now_ms()))
      QUIRE_RETURN_IF_ERROR(check_version(options, there.version));
    if (if_expired_at && !is_expired(there, *if_expired_at)) return no_document(ns, id);
    const auto number = catalog_->remove(ns, id, found[0].revision.number,
                                         if_expired_at.has_value());
    if (number.code() == Code::kFailedPrecondition) continue;
    QUIRE_RETURN_IF_ERROR(number.status());
    ++catalog_written_;
    {
      const std::lock_guard lock(mu_);
      removed_[catalog_key(kHeadKind, ns, id)] = *number;
    }
    return old.code() == Code::kNotFound ? Status() : remove_records(ns, id, old);
  }
}

Status StoreImpl::remove_records(std::string_view ns, std::string_view id,
                                 const Result<DocumentManifest>& old) {
  const std::string key = catalog_key(kHeadKind, ns, id);
  QUIRE_RETURN_IF_ERROR(check_settled(key));
  std::vector<RecordWrite> batch;
  for (char kind : {kHeadKind, kTokensKind, kTextKind})
    batch.push_back({Family::kCatalog, catalog_key(kind, ns, id), std::nullopt});
  if (old.ok()) {
    batch.push_back({Family::kCatalog, text_key(*old), std::nullopt});
    change_terms(&*old, nullptr, &batch);
  }
  if (catalog_)
    batch.push_back({Family::kCatalog, catalog_key(kRevisionKind, ns, id), std::nullopt});
  else
    leave_catalog(ns, id, &batch);
  if (Status s = disk_->write(batch, Sync::kYes); !s.ok()) {
    doubt(key, old.ok() ? &*old : nullptr, s);
    return s;
  }
  trust(key);
  TakenUse(*this, key).set_written();
  expiries_.set(key, std::nullopt);
  if (!old.ok()) return {};
  count_document(*old, -1);
  release_keys(segment_keys(*old), old->pinned);
  return {};
}

Status StoreImpl::delete_document(std::string_view ns, std::string_view id,
                                  const CommitOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  return remove_document(ns, id, std::nullopt, options);
}

Result<std::uint64_t> StoreImpl::expire(std::int64_t now) {
  QUIRE_RETURN_IF_ERROR(check_writable());
  settle_all();
  // After a crash only what is written keeps a document that is in use.
  if (Status s = flush_uses(/*all=*/false); !s.ok())
    log_warning("usage counts were not written", {{"reason", s.to_string()}});
  constexpr std::size_t kAtOnce = 1000;
  std::uint64_t n = 0;
  // Each takes a round trip to a shared catalog, and the caller has other upkeep.
  const auto until = catalog_ ? Clock::now() + kExpiryTime : Clock::time_point::max();
  for (bool over = false; !over;) {
    const auto due = expiries_.due(now, kAtOnce);
    if (due.empty()) break;
    for (const std::string& key : due) {
      over = Clock::now() >= until;
      if (over) break;
      const auto split = key.find('\0');
      const std::string ns = key.substr(1, split - 1), id = key.substr(split + 1);
      const Status s = remove_document(ns, id, now);
      n += s.ok();
      if (catalog_is_away(s)) {  // they stay hidden, and are deleted when it is back
        documents_expired_ += n;
        return n;
      }
      if (s.code() == Code::kNotFound || s.code() == Code::kCorruption) {
        reschedule(ns, id, now);
      } else if (!s.ok()) {
        return s;
      }
    }
  }
  documents_expired_ += n;
  return n;
}

/// Sets the time of a document that was due and has not expired: a use has moved it.
void StoreImpl::reschedule(const std::string& ns, const std::string& id, std::int64_t now) {
  const DocumentLock lock(*this, ns, id);
  auto m = read_head(ns, id);
  std::optional<std::int64_t> when;
  if (m.ok() && !is_expired(*m, now)) when = m->effective_expiry_ms();
  expiries_.set(catalog_key(kHeadKind, ns, id), when);
}

void StoreImpl::touch_document(std::string_view ns, std::string_view id) {
  if (options_.read_only) return;
  bool flush_now = false;
  {
    std::lock_guard lock(mu_);
    Use& use = uses_[use_key(ns, id)];
    ++use.hits;
    use.last_ms = now_ms();
    if (uses_.size() > kMaxPendingUses && !flushing_uses_) flush_now = flushing_uses_ = true;
  }
  if (!flush_now) return;
  pool_->post_background([this] {
    if (Status s = flush_uses(); !s.ok())
      log_warning("usage counts were not written", {{"reason", s.to_string()}});
    std::lock_guard lock(mu_);
    flushing_uses_ = false;
  });
}

bool StoreImpl::use_moves_end(std::string_view ns, std::string_view id) {
  const std::string key = catalog_key(kHeadKind, ns, id);
  if (!expiries_.contains(key)) return false;  // nothing is read for a document that never ends
  auto m = read_stored_head(ns, id);
  if (!m.ok() || m->ttl_anchor != TtlAnchor::kLastUsed || !m->ttl_seconds) return false;
  const std::int64_t stored = m->effective_expiry_ms().value_or(0);
  add_pending_use(key, &*m);
  const std::int64_t moved = m->effective_expiry_ms().value_or(0) - stored;
  return moved > 0 && static_cast<std::uint64_t>(moved / (1000 / kUseParts)) >= *m->ttl_seconds;
}

Status StoreImpl::flush_uses(bool all) {
  std::vector<std::string> keys;
  {
    std::lock_guard lock(mu_);
    for (const auto& [key, use] : uses_) keys.push_back(key);
  }
  for (const auto& key : keys) {
    const auto split = key.find('\0');
    const std::string ns = key.substr(1, split - 1), id = key.substr(split + 1);
    if (!all && !use_moves_end(ns, id)) continue;
    const DocumentLock lock(*this, ns, id);
    TakenUse use(*this, key);
    auto head = read_stored_head(ns, id);
    if (!head.ok()) {
      use.set_written();  // deleted or damaged: nothing to add to
      continue;
    }
    if (!check_settled(key).ok()) continue;
    use.add_to(&*head);
    const RecordWrite w{Family::kCatalog, key, record::encode_head(*head)};
    QUIRE_RETURN_IF_ERROR(disk_->write(std::span(&w, 1), Sync::kNo));
    use.set_written();
  }
  return {};
}

}  // namespace quire
