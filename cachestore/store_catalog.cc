// This file implements what StoreImpl does with a shared catalog: changing documents there first,
// and taking over what other replicas have changed.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "cachestore/format/byte_io.h"
#include "cachestore/store_impl.h"

namespace quire {
namespace {

/// What is remembered of a copy: its state, and the last use that the catalog knows of.
struct CopyRecord {
  CatalogRevision revision;
  std::int64_t used_ms = 0;
};

std::string encode_copy(const CopyRecord& copy) {
  ByteWriter w;
  w.number<std::uint64_t>(copy.revision.number);
  w.number<std::uint64_t>(copy.revision.body);
  w.number<std::int64_t>(copy.used_ms);
  return record::encode_opaque(w.take());
}

Result<CopyRecord> decode_copy(std::string_view bytes) {
  QUIRE_ASSIGN_OR_RETURN(const std::string payload, record::decode_opaque(bytes));
  CopyRecord copy;
  ByteReader r(payload);
  copy.revision.number = r.number<std::uint64_t>();
  copy.revision.body = r.number<std::uint64_t>();
  copy.used_ms = r.number<std::int64_t>();
  if (!r.ok() || !r.at_end()) return Status::corruption("a stored revision is damaged");
  return copy;
}

CatalogName name_of(std::string_view key) {
  const auto split = key.find('\0');
  return {std::string(key.substr(1, split - 1)), std::string(key.substr(split + 1))};
}

/// Returns the head as other replicas shall have it: where a text lies is each one's own matter.
std::string shared_head(const DocumentManifest& m) {
  if (m.text_name.empty()) return record::encode_head(m);
  DocumentManifest head = m;
  head.text_name.clear();
  return record::encode_head(head);
}

}  // namespace

Status StoreImpl::start_catalog() {
  if (!catalog_) return {};
  // Documents whose record is damaged are read anew from the catalog.
  if (heads_damaged_ && follows_)
    QUIRE_RETURN_IF_ERROR(delete_record(Family::kMeta, kCatalogPositionRecord));
  follows_ = true;
  follower_ = std::make_unique<CatalogFollower>(*catalog_, static_cast<CatalogCopy&>(*this),
                                                options_.catalog.poll, options_.clock_ms);
  return follower_->start();
}

CatalogStats StoreImpl::catalog_stats() const {
  if (!follower_) return {};
  CatalogStats s = follower_->stats();
  s.written = catalog_written_;
  s.conflicts = catalog_conflicts_;
  s.failures = catalog_->failures();
  return s;
}

Status StoreImpl::check_catalog() const {
  if (!catalog_ || follower_->is_joined()) return {};
  const std::string reason = follower_->stats().reason;
  return catalog_away(reason.empty() ? "this replica has not seen it yet" : reason);
}

// ---- changes of this replica ----

Result<CatalogRevision> StoreImpl::read_revision(std::string_view ns, std::string_view id) {
  const auto bytes = disk_->get(Family::kCatalog, catalog_key(kRevisionKind, ns, id));
  if (bytes.code() == Code::kNotFound) return CatalogRevision{};
  QUIRE_RETURN_IF_ERROR(bytes.status());
  QUIRE_ASSIGN_OR_RETURN(const CopyRecord copy, decode_copy(*bytes));
  return copy.revision;
}

void StoreImpl::leave_catalog(std::string_view ns, std::string_view id,
                              std::vector<RecordWrite>* batch) {
  if (!follows_) return;
  batch->push_back({Family::kCatalog, catalog_key(kRevisionKind, ns, id), std::nullopt});
  batch->push_back({Family::kMeta, std::string(kCatalogPositionRecord), std::nullopt});
}

Status StoreImpl::share_version(const DocumentManifest& next, std::optional<std::string> tokens,
                                std::optional<std::string_view> text,
                                std::vector<RecordWrite>* batch, bool* late,
                                const std::optional<JobFence>& fence) {
  if (!catalog_) {
    leave_catalog(next.ns, next.id, batch);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const CatalogRevision old, read_revision(next.ns, next.id));
  CatalogPut put;
  put.ns = next.ns;
  put.id = next.id;
  put.version = next.version;
  put.head = shared_head(next);
  put.tokens = std::move(tokens);
  put.text = text;
  put.fence = fence;
  const auto number = catalog_->put(put, old.number);
  *late = number.code() == Code::kFailedPrecondition;
  QUIRE_RETURN_IF_ERROR(number.status());
  ++catalog_written_;
  const bool same_body = !put.tokens && !put.text;
  batch->push_back({Family::kCatalog, catalog_key(kRevisionKind, next.ns, next.id),
                    encode_copy({{*number, same_body ? old.body : *number}, next.last_used_ms})});
  return {};
}

Status StoreImpl::share_removal(std::string_view ns, std::string_view id, bool expired,
                                bool* late) {
  if (!catalog_) return {};
  QUIRE_ASSIGN_OR_RETURN(CatalogRevision here, read_revision(ns, id));
  if (here.number == 0) {  // what was remembered of it was lost with a damaged record
    const CatalogName name{std::string(ns), std::string(id)};
    QUIRE_ASSIGN_OR_RETURN(const auto found, catalog_->heads({&name, 1}));
    if (found.empty()) return {};
    here = found[0].revision;
  }
  const auto number = catalog_->remove(ns, id, here.number, expired);
  *late = number.code() == Code::kFailedPrecondition;
  QUIRE_RETURN_IF_ERROR(number.status());
  ++catalog_written_;
  const std::lock_guard lock(mu_);
  removed_[catalog_key(kHeadKind, ns, id)] = *number;
  return {};
}

Status StoreImpl::check_room(const DocumentManifest& next, std::uint64_t body_bytes) {
  if (!catalog_) return {};
  const std::uint64_t bytes = shared_head(next).size() + body_bytes;
  return reserve(room_for(bytes), "document '" + next.id + "'").status();
}

Status StoreImpl::refresh(std::string_view ns, std::string_view id) {
  const CatalogName name{std::string(ns), std::string(id)};
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const auto heads, catalog_->heads({&name, 1}));
    if (heads.empty()) {
      const auto old = read_stored_head(ns, id);
      if (old.code() == Code::kNotFound) return {};
      return remove_records(ns, id, old);
    }
    const CatalogRevision here = copied(name);
    if (here.number != 0 && here.body == heads[0].revision.body)
      return apply_locked(heads[0], nullptr);
    QUIRE_ASSIGN_OR_RETURN(const auto bodies, catalog_->bodies({&name, 1}));
    if (!bodies.empty() && bodies[0].body == heads[0].revision.body)
      return apply_locked(heads[0], &bodies[0]);
  }
}

Status StoreImpl::look_for(std::string_view ns, std::string_view id) {
  if (!catalog_ ||
      disk_->get(Family::kCatalog, catalog_key(kHeadKind, ns, id)).code() != Code::kNotFound)
    return {};
  return refresh(ns, id);
}

Status StoreImpl::refresh_document(std::string_view ns, std::string_view id) {
  if (!catalog_) return {};
  QUIRE_RETURN_IF_ERROR(check_catalog());
  const DocumentLock lock(*this, ns, id);
  return refresh(ns, id);
}

Status StoreImpl::confirm_document(const DocumentManifest& as_read, const JobFence& fence) {
  if (!catalog_) return {};
  const std::string &ns = as_read.ns, &id = as_read.id;
  const DocumentLock lock(*this, ns, id);
  const auto here = read_stored_head(ns, id);
  if (!here.ok() && here.code() != Code::kNotFound) return here.status();
  // The number of its last change, which is never used twice, is read with the document.
  if (!here.ok() || here->version != as_read.version || here->created_ms != as_read.created_ms ||
      here->updated_ms != as_read.updated_ms || here->content_hash != as_read.content_hash)
    return Status::precondition("another replica has changed the document");
  QUIRE_ASSIGN_OR_RETURN(const CatalogRevision revision, read_revision(ns, id));
  return catalog_->confirm(ns, id, revision.number, fence);
}

Status StoreImpl::share_uses() {
  std::vector<CatalogName> used;
  {
    const std::lock_guard lock(mu_);
    for (const auto& [key, use] : uses_) used.push_back(name_of(key));
  }
  for (const CatalogName& name : used) {
    const std::string &ns = name.ns, &id = name.id;
    const auto head = read_head(ns, id);
    if (!head.ok() || head->ttl_anchor != TtlAnchor::kLastUsed || !head->ttl_seconds) continue;
    const auto bytes = disk_->get(Family::kCatalog, catalog_key(kRevisionKind, ns, id));
    const auto copy = bytes.ok() ? decode_copy(*bytes) : bytes.status();
    const auto ttl_ms = static_cast<std::int64_t>(*head->ttl_seconds) * 1000;
    if (!copy.ok() || head->last_used_ms - copy->used_ms < ttl_ms / kUseParts) continue;
    const DocumentLock lock(*this, ns, id);
    if (!check_settled(catalog_key(kHeadKind, ns, id)).ok()) continue;
    const Status shared = in_turn(ns, id, [&](bool* late) -> Status {
      TakenUse use(*this, catalog_key(kHeadKind, ns, id));
      auto old = read_stored_head(ns, id);
      if (!old.ok()) return {};
      use.add_to(&*old);
      if (is_expired(*old, now_ms())) return {};
      QUIRE_RETURN_IF_ERROR(check_room(*old, 0));
      std::vector<RecordWrite> batch;
      QUIRE_RETURN_IF_ERROR(share_version(*old, std::nullopt, std::nullopt, &batch, late));
      QUIRE_RETURN_IF_ERROR(store_update(*old, *old, std::move(batch)));
      use.set_written();
      return {};
    });
    QUIRE_RETURN_IF_ERROR(shared);
  }
  return {};
}

// ---- changes of other replicas ----

CatalogRevision StoreImpl::copied(const CatalogName& name) {
  if (!read_stored_head(name.ns, name.id).ok()) return {};
  return read_revision(name.ns, name.id).value_or({});
}

Status StoreImpl::apply(const CatalogEntry& entry, const CatalogBody* body) {
  const DocumentLock lock(*this, entry.name.ns, entry.name.id);
  return apply_locked(entry, body);
}

Status StoreImpl::apply_locked(const CatalogEntry& entry, const CatalogBody* body) {
  const std::string &ns = entry.name.ns, &id = entry.name.id;
  const std::string key = catalog_key(kHeadKind, ns, id);
  {
    const std::lock_guard lock(mu_);
    const auto removed = removed_.find(key);
    if (removed != removed_.end() && removed->second >= entry.revision.number) return {};
  }
  const auto old = read_stored_head(ns, id);
  if (!old.ok() && old.code() != Code::kNotFound && old.code() != Code::kCorruption)
    return old.status();
  const CatalogRevision here = copied(entry.name);
  if (here.number >= entry.revision.number) return {};
  const std::string what = "document '" + id + "' of the shared catalog";
  auto decoded = record::decode_head(entry.head);
  if (decoded.ok() && (decoded->ns != ns || decoded->id != id))
    decoded = Status::corruption("it is under the wrong name");
  if (!decoded.ok()) return decoded.status().with_context(what);
  DocumentManifest m = std::move(*decoded);
  std::vector<RecordWrite> batch;
  if (body != nullptr) {
    DocumentManifest whole = m;
    if (Status s = record::decode_tokens(body->tokens, &whole); !s.ok())
      return s.with_context(what);
    if (body->text.size() != m.text_bytes)
      return Status::corruption("its text has another length").with_context(what);
    batch.push_back({Family::kCatalog, catalog_key(kTokensKind, ns, id), body->tokens});
    batch.push_back(
        {Family::kCatalog, catalog_key(kTextKind, ns, id), record::encode_text(body->text)});
    if (old.ok() && !old->text_name.empty())
      batch.push_back({Family::kCatalog, text_key(*old), std::nullopt});
  } else {
    if (here.body != entry.revision.body)
      return Status::internal("a copy's text is not that of its head");
    m.text_name = old->text_name;
    // KV that this replica has of the same chunks for other models stays named.
    for (const ContextKey& k : old->companions)
      if (std::ranges::find(m.companions, k) == m.companions.end()) m.companions.push_back(k);
  }
  const std::int64_t told_ms = m.last_used_ms;
  if (old.ok()) {
    m.hits = old->hits;  // each replica counts its own
    m.last_used_ms = std::max(m.last_used_ms, old->last_used_ms);
  }
  batch.push_back({Family::kCatalog, catalog_key(kRevisionKind, ns, id),
                   encode_copy({entry.revision, told_ms})});
  // The position behind it is synced, and the log keeps their order: what a loss of power takes is
  // applied again.
  return write_version(old.ok() ? &*old : nullptr, m, std::move(batch), Sync::kNo).status();
}

Status StoreImpl::apply_removal(const CatalogName& name, std::uint64_t number) {
  const DocumentLock lock(*this, name.ns, name.id);
  const auto old = read_stored_head(name.ns, name.id);
  if (old.code() == Code::kNotFound) return {};
  if (!old.ok() && old.code() != Code::kCorruption) return old.status();
  QUIRE_ASSIGN_OR_RETURN(const CatalogRevision here, read_revision(name.ns, name.id));
  if (here.number > number) return {};
  return remove_records(name.ns, name.id, old);
}

Result<std::vector<CatalogEntry>> StoreImpl::copies(const CatalogName& after,
                                                    const CatalogName& last) {
  std::string begin(1, kRevisionKind), end(1, kRevisionKind + 1);
  if (!after.ns.empty()) begin = catalog_key(kRevisionKind, after.ns, after.id) + '\0';
  if (!last.ns.empty()) end = catalog_key(kRevisionKind, last.ns, last.id) + '\0';
  std::vector<CatalogEntry> out;
  QUIRE_RETURN_IF_ERROR(disk_->scan(
      Family::kCatalog, begin, end, false, [&](std::string_view key, std::string_view value) {
        const auto copy = decode_copy(value);
        out.push_back({name_of(key), copy.ok() ? copy->revision : CatalogRevision{}, {}});
        return true;
      }));
  return out;
}

void StoreImpl::passed(const CatalogPosition& position) {
  const std::lock_guard lock(mu_);
  std::erase_if(removed_, [&](const auto& removed) {
    const CatalogName name = name_of(removed.first);
    return removed.second <= position[catalog_shard(name.ns, name.id)];
  });
}

// ---- documents from before ----

Status StoreImpl::share_own() {
  std::vector<CatalogName> all, differing;
  QUIRE_RETURN_IF_ERROR(disk_->scan(Family::kCatalog, std::string(1, kHeadKind),
                                    std::string(1, kHeadKind + 1), false,
                                    [&](std::string_view key, std::string_view) {
                                      all.push_back(name_of(key));
                                      return true;
                                    }));
  std::uint64_t shared = 0;
  for (const CatalogName& name : all) {
    QUIRE_ASSIGN_OR_RETURN(const CatalogRevision here, read_revision(name.ns, name.id));
    if (here.number != 0) continue;
    QUIRE_RETURN_IF_ERROR(share_own_document(name, &differing));
    if (++shared % 1000 == 0)
      log_info("documents of this store are put into the shared catalog",
               {{"documents", std::to_string(shared)}});
  }
  if (differing.empty()) return {};
  return Status(
      Code::kFailedPrecondition,
      "the document '" + differing[0].id + "' of the namespace '" + differing[0].ns + "'" +
          (differing.size() > 1 ? " and " + std::to_string(differing.size() - 1) + " more" : "") +
          " in disk.path differ from those of the shared catalog; start without catalog.url and "
          "delete them here, or use an empty folder: the catalog has all other documents",
      "catalog.url");
}

Status StoreImpl::share_own_document(const CatalogName& name, std::vector<CatalogName>* differing) {
  const auto& [ns, id] = name;
  const DocumentLock lock(*this, ns, id);
  const auto head = read_stored_head(ns, id);
  if (!head.ok()) return {};  // damaged: the catalog may have it
  const auto tokens = disk_->get(Family::kCatalog, catalog_key(kTokensKind, ns, id));
  const auto stored = disk_->get(Family::kCatalog, text_key(*head));
  const auto text = stored.ok() ? record::decode_text(*stored) : stored;
  if (!tokens.ok() || !text.ok()) {
    log_warning("a damaged document is not put into the shared catalog",
                {{"namespace", ns}, {"document_id", id}});
    return {};
  }
  std::vector<RecordWrite> batch;
  bool late = false;
  const Status s = share_version(*head, *tokens, *text, &batch, &late);
  if (s.ok()) return disk_->write(batch, Sync::kYes);
  if (!late) return s;
  QUIRE_ASSIGN_OR_RETURN(const auto there, catalog_->heads({&name, 1}));
  if (there.empty()) return {};  // deleted this moment
  QUIRE_ASSIGN_OR_RETURN(const DocumentManifest theirs, record::decode_head(there[0].head));
  if (theirs.content_hash == head->content_hash) return refresh(ns, id);
  differing->push_back(name);
  return {};
}

}  // namespace quire
