#include "ingest/store_catalog.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/index.h"
#include "cachestore/catalog/shared_catalog.h"
#include "cachestore/format/metadata.h"
#include "ingest/block_list.h"
#include "ingest/document/metadata.h"
#include "ingest/document/utf8.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"

namespace quire {
namespace {

/// Reads of a document that changes all the time, before its readers are told so.
constexpr int kMostTries = 10;

Status no_document(std::string_view id) {
  return Status::not_found("no document " + std::string(id));
}

}  // namespace

// -------------------------------------------------------------------------------------------------
// One document

void StoreCatalog::fill_cache(const DocumentManifest& m, DocumentInfo::Cache& cache) const {
  cache.fingerprint = m.fingerprint;
  cache.kv_dtype = engine_.info().kv_dtype;
  cache.blocks = count_blocks(m);
  std::uint64_t found = 0;
  for (const DocumentChunk& c : m.chunks) {
    const std::uint64_t n = blocks_of(c);
    if (store_.is_shared(c.key)) cache.remote += n;
    const auto segment = c.key.is_zero() ? std::nullopt : store_.peek_segment(c.key);
    if (!segment) continue;
    found += n;
    cache.disk += n;
    cache.bytes += (*segment)->value_bytes + (*segment)->sketch_bytes;
    for (std::uint32_t b = 0; b < n; ++b)
      cache.dram += store_.tier_of(*segment, b, 0) == Tier::kDram;
  }
  if (m.fingerprint != engine_.document_fingerprint(m.ns) && kv_policy(m) != KvPolicy::kTextOnly) {
    cache.state = "stale";
  } else {
    const KvPolicy kv = kv_policy(m);
    cache.state = kv == KvPolicy::kTextOnly             ? "text_only"
                  : found == 0 && kv == KvPolicy::kLazy ? "lazy"
                  : found == 0                          ? "evicted"
                  : found < cache.blocks                ? "partial"
                                                        : "resident";
  }
}

Tier StoreCatalog::first_tier(const DocumentChunk& chunk) const {
  const auto segment = chunk.key.is_zero() ? std::nullopt : store_.peek_segment(chunk.key);
  return segment ? store_.tier_of(*segment, 0, 0) : Tier::kNone;
}

DocumentInfo StoreCatalog::describe(const DocumentManifest& m, bool with_cache) const {
  DocumentInfo d;
  d.id = m.id;
  d.ns = m.ns;
  d.title = m.title;
  d.metadata_json = m.metadata_json.empty() ? "{}" : m.metadata_json;
  d.content_hash = m.content_hash;
  d.tag = document_tag(m);
  d.chunking = m.chunking;
  d.version = m.version;
  d.bytes = m.text_bytes;
  d.tokens = m.num_tokens;
  d.num_chunks = m.chunks.size();
  d.status = m.status;
  if (m.status == DocumentStatus::kFailed) d.error = ItemError{m.error_code, m.error_message, ""};
  d.pinned = m.pinned;
  d.hits = m.hits;
  d.created_ms = m.created_ms;
  d.updated_ms = m.updated_ms;
  d.last_used_ms = m.last_used_ms;
  d.expires_at_ms = m.effective_expiry_ms();
  d.job_id = m.job_id;
  if (with_cache && m.status == DocumentStatus::kReady) fill_cache(m, d.cache);
  return d;
}

/// Another replica may have made the document a moment ago. While the catalog is away, nobody can
/// say so.
Status StoreCatalog::look_for(std::string_view ns, std::string_view id) const {
  return store_.get_document_head(ns, id).code() == Code::kNotFound
             ? store_.refresh_document(ns, id)
             : Status();
}

Result<DocumentInfo> StoreCatalog::describe_pending(std::string_view ns,
                                                    const PendingDocument& pending) {
  DocumentInfo d;
  d.metadata_json = "{}";
  d.bytes = pending.input_bytes;
  if (!pending.elsewhere) {
    QUIRE_ASSIGN_OR_RETURN(SavedInput saved,
                           table_.saved_input(pending.job_id, pending.pack, pending.index));
    d.title = std::move(saved.input.title);
    d.metadata_json = std::move(saved.input.metadata_json);
    d.bytes = saved.text_bytes;
  }
  d.id = pending.id;
  d.ns = ns;
  d.content_hash = d.tag = pending.content_hash;
  d.tokens = pending.tokens_total;
  d.status = pending.status;
  d.pinned = pending.settings->pinned;
  d.created_ms = d.updated_ms = pending.job_created_ms;
  d.job_id = pending.job_id;
  d.progress = pending.progress;
  return d;
}

Result<DocumentInfo> StoreCatalog::get(std::string_view ns, std::string_view id) {
  // The job is read first: once it has ended, the store has the document.
  auto pending = table_.pending(ns, id);
  auto head = store_.get_document_head(ns, id);
  if (head.code() == Code::kNotFound && !pending) {  // here; another replica may know more
    QUIRE_ASSIGN_OR_RETURN(pending, table_.pending_elsewhere(ns, id));
    QUIRE_RETURN_IF_ERROR(store_.refresh_document(ns, id));
    head = store_.get_document_head(ns, id);
    if (head.ok()) pending.reset();
  }
  if (head.ok() && (head->status == DocumentStatus::kReady || !pending)) {
    DocumentInfo d = describe_whole(*head);
    if (pending) {
      d.progress = pending->progress;
      d.job_id = pending->job_id;
    }
    return d;
  }
  if (!head.ok() && head.code() != Code::kNotFound) return head.status();
  if (!pending) return no_document(id);
  auto d = describe_pending(ns, *pending);
  if (d.ok()) return d;
  // The input is gone, so the job has ended in the meantime.
  head = store_.get_document_head(ns, id);
  if (!head.ok()) return head.code() == Code::kNotFound ? no_document(id) : head.status();
  return describe_whole(*head);
}

/// As a reply about one document has it; lists leave out what takes another read.
DocumentInfo StoreCatalog::describe_whole(const DocumentManifest& head) const {
  DocumentInfo d = describe(head, /*with_cache=*/true);
  d.read_behind = read_behind_of(head);
  return d;
}

/// Heads lack the texts that a document was read behind, so where its settings ask for any, the
/// whole manifest says whether there was room for them.
std::optional<ReadBehind> StoreCatalog::read_behind_of(const DocumentManifest& head) const {
  if (head.status != DocumentStatus::kReady || kv_policy(head) == KvPolicy::kTextOnly)
    return std::nullopt;
  ChunkingOptions asked;
  set_what_is_seen(head, asked);
  if (!asked.lead_in.value_or(false) && asked.related_tokens == 0) return ReadBehind();
  const auto whole = store_.get_document(head.ns, head.id);
  // It was deleted or replaced between the two reads.
  if (!whole.ok() || whole->version != head.version) return std::nullopt;
  return read_behind(whole->related);
}

Result<std::string> StoreCatalog::content(std::string_view ns, std::string_view id) {
  const auto pending = table_.pending(ns, id);
  if (!pending) QUIRE_RETURN_IF_ERROR(look_for(ns, id));
  const auto head = store_.get_document_head(ns, id);
  const bool failed = head.ok() && head->status == DocumentStatus::kFailed;
  if (failed && !pending)
    return Status::precondition("the document '" + std::string(id) +
                                "' failed, and its text was not kept; post it again");
  auto text = failed ? Result<std::string>(no_document(id)) : store_.get_text(ns, id);
  if (text.ok() || text.code() != Code::kNotFound) return text;
  if (pending && pending->type == JobType::kIngest) {
    auto input = table_.input(*pending);
    if (input.ok()) return prepare_text(std::move(*input)).text;
  }
  return no_document(id);
}

// -------------------------------------------------------------------------------------------------
// Lists

bool StoreCatalog::matches(const DocumentInfo& info, const DocumentFilter& filter) const {
  return (!filter.status || info.status == *filter.status) &&
         metadata_matches(info.metadata_json, filter.metadata);
}

Result<DocumentListPage> StoreCatalog::list(std::string_view ns,
                                            const DocumentListOptions& options) {
  if (options.limit < 1 || options.limit > 100) return Status::invalid("limit", "must be 1 to 100");
  const auto before = [&](const std::string& a, const std::string& b) {
    return options.descending ? a > b : a < b;
  };
  // New documents that are still being ingested are not in the catalog yet. More of them than the
  // page takes cannot be on it.
  std::vector<DocumentInfo> fresh;
  std::unordered_set<std::string> fresh_ids;
  std::string last = options.after;
  while (fresh.size() <= options.limit) {
    const auto some = table_.pending_after(ns, last, options.descending, options.limit + 1);
    if (some.empty()) break;
    last = some.back().id;
    for (const PendingDocument& pending : some) {
      if (pending.type != JobType::kIngest || fresh.size() > options.limit) continue;
      // Its input need not be read to know that.
      if (options.filter.status && pending.status != *options.filter.status) continue;
      const auto head = store_.get_document_head(ns, pending.id);
      if (head.ok() && head->status == DocumentStatus::kReady) continue;
      auto d = describe_pending(ns, pending);
      if (!d.ok() || !matches(*d, options.filter)) continue;
      fresh_ids.insert(d->id);
      fresh.push_back(std::move(*d));
    }
  }

  ListOptions query;
  query.after = options.after;
  query.limit = options.limit;
  query.descending = options.descending;
  query.status = options.filter.status;
  query.metadata = options.filter.metadata;
  if (!fresh.empty())
    query.filter = [&](const DocumentManifest& m) { return !fresh_ids.contains(m.id); };
  QUIRE_ASSIGN_OR_RETURN(const DocumentList stored, store_.list_documents(ns, query));

  DocumentListPage page;
  page.has_more = stored.has_more;
  std::size_t f = 0;
  const auto push = [&](DocumentInfo d) {
    if (page.documents.size() < options.limit) {
      page.documents.push_back(std::move(d));
    } else {
      page.has_more = true;
    }
  };
  for (const DocumentManifest& m : stored.documents) {
    while (f < fresh.size() && before(fresh[f].id, m.id)) push(std::move(fresh[f++]));
    push(page.documents.size() < options.limit ? describe(m, options.with_cache) : DocumentInfo{});
  }
  // They follow the last stored document only if the store has no more in between.
  while (f < fresh.size() && !stored.has_more) push(std::move(fresh[f++]));
  page.has_more = page.has_more || f < fresh.size();
  return page;
}

Result<DocumentCounts> StoreCatalog::counts(std::string_view ns) {
  // The jobs are read first: once one has ended, the store has the document.
  const auto pending = table_.pending_in(ns);
  QUIRE_ASSIGN_OR_RETURN(const NamespaceStats stored, store_.namespace_stats(ns));
  DocumentCounts n;
  n.total = stored.documents;
  n.ready = stored.ready;
  n.failed = stored.failed;
  n.tokens = stored.tokens;
  n.text_bytes = stored.text_bytes;
  for (const PendingDocument& p : pending) {
    if (p.type != JobType::kIngest) continue;
    ++n.in_progress;
    const auto head = store_.get_document_head(ns, p.id);
    if (!head.ok()) {
      ++n.total;
    } else if (head->status == DocumentStatus::kFailed) {
      --n.failed;
    }
  }
  return n;
}

// -------------------------------------------------------------------------------------------------
// Chunks and blocks

/// The text is read after the manifest: only if nothing was committed in between do they belong
/// together.
Result<StoreCatalog::Whole> StoreCatalog::whole(std::string_view ns, std::string_view id) const {
  QUIRE_RETURN_IF_ERROR(look_for(ns, id));
  const auto known = [&](const Status& s) {
    return s.code() == Code::kNotFound ? no_document(id) : s;
  };
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    auto m = store_.get_document(ns, id);
    if (!m.ok()) return known(m.status());
    auto text = store_.get_text(ns, id);
    const auto now = store_.get_document_head(ns, id);
    if (!now.ok()) return known(now.status());
    if (!is_unchanged(*m, *now)) continue;
    if (!text.ok()) return known(text.status());
    return Whole{std::move(*m), std::move(*text)};
  }
  return Status::unavailable("document '" + std::string(id) +
                             "' changes faster than it can be read");
}

Result<std::vector<ChunkInfo>> StoreCatalog::chunks(std::string_view ns, std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(const Whole d, whole(ns, id));
  CodePointCounter begin(d.text), end(d.text);
  std::vector<ChunkInfo> out;
  for (const DocumentChunk& c : d.manifest.chunks) {
    ChunkInfo info;
    info.index = static_cast<std::int32_t>(out.size());
    info.byte_begin = c.byte_begin;
    info.byte_end = c.byte_end;
    info.char_begin = begin.at(at(c.byte_begin));
    info.char_end = end.at(at(c.byte_end));
    info.tokens = c.num_tokens;
    info.blocks = blocks_of(c);
    info.block_tokens = static_cast<std::int32_t>(c.block_tokens);
    info.key = c.key.hex();
    info.tier = first_tier(c);
    info.place = place_of(d.manifest.marks, c.byte_begin, c.byte_end);
    out.push_back(std::move(info));
  }
  return out;
}

Result<std::vector<TextMark>> StoreCatalog::marks(std::string_view ns, std::string_view id) {
  QUIRE_RETURN_IF_ERROR(look_for(ns, id));
  auto m = store_.get_document(ns, id);
  if (!m.ok()) return m.code() == Code::kNotFound ? no_document(id) : m.status();
  return std::move(m->marks);
}

Result<std::vector<BlockInfo>> StoreCatalog::blocks(std::string_view ns, std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(const Whole d, whole(ns, id));
  return list_blocks(store_, engine_, d.manifest, d.text, options_.tenant(ns));
}

// -------------------------------------------------------------------------------------------------
// Changing and deleting

Status StoreCatalog::check_patch(const DocumentPatch& patch) const {
  if (patch.title) {
    DocumentInput probe;
    probe.title = *patch.title;
    probe.text = "x";
    if (const auto error = check_document(probe, options_, ""))
      return Status::invalid("title", error->message);
  }
  if (patch.ttl_seconds && *patch.ttl_seconds && patch.expires_at_ms && *patch.expires_at_ms) {
    return Status::invalid("expires_at", "give either ttl_seconds or expires_at");
  }
  if (patch.ttl_seconds && *patch.ttl_seconds &&
      (**patch.ttl_seconds == 0 || **patch.ttl_seconds > 100ull * 366 * 86400)) {
    return Status::invalid("ttl_seconds", "must be at least 1 and at most 100 years");
  }
  if (patch.expires_at_ms && *patch.expires_at_ms && **patch.expires_at_ms <= options_.now_ms())
    return Status::invalid("expires_at", "lies in the past");
  return {};
}

/// The tag in a condition may be that of a change of another replica that is not here yet.
Status StoreCatalog::refresh_for(const DocumentCondition& condition, std::string_view ns,
                                 std::string_view id) const {
  const bool conditional = condition.if_match || condition.if_none_match;
  return conditional ? store_.refresh_document(ns, id) : Status();
}

Result<DocumentInfo> StoreCatalog::patch(std::string_view ns, std::string_view id,
                                         const DocumentPatch& patch) {
  QUIRE_RETURN_IF_ERROR(check_patch(patch));
  QUIRE_RETURN_IF_ERROR(refresh_for(patch.condition, ns, id));
  QUIRE_ASSIGN_OR_RETURN(const auto pending, table_.pending_post(ns, id));
  // Its commit would undo the change, which was made to the version that it replaces.
  if (pending)
    return Status::precondition("the document '" + std::string(id) +
                                "' is being replaced by the job " + pending->job_id +
                                "; change it once that has ended");
  PinGate::Grant pin;  // until the store counts the document as pinned
  auto changed = store_.update_document(ns, id, [&](DocumentManifest& m) -> Status {
    if (m.status != DocumentStatus::kReady)
      return Status::precondition("the document '" + m.id + "' is not ready");
    QUIRE_RETURN_IF_ERROR(check_condition(patch.condition, document_tag(m), m.content_hash));
    if (patch.metadata_json) {
      QUIRE_ASSIGN_OR_RETURN(m.metadata_json, merge_metadata(m.metadata_json, *patch.metadata_json,
                                                             to_size(options_.max_metadata_bytes)));
    }
    if (patch.title) m.title = *patch.title;
    if (patch.pinned && *patch.pinned && !m.pinned) {
      QUIRE_ASSIGN_OR_RETURN(
          pin, pins_.grant({pin_bytes(store_, {&m, 1}, kv_bytes(engine_.info(), 1)).disk, 0}));
    }
    if (patch.pinned) m.pinned = *patch.pinned;
    if (patch.ttl_anchor) m.ttl_anchor = *patch.ttl_anchor;
    if (patch.ttl_seconds) {
      m.ttl_seconds = *patch.ttl_seconds;
      if (m.ttl_seconds) m.ttl_start_ms = options_.now_ms();
      // The later setting takes precedence, including its removal of the end.
      m.expires_at_ms.reset();
    }
    if (patch.expires_at_ms) m.expires_at_ms = *patch.expires_at_ms;
    return {};
  });
  if (!changed.ok()) {
    return changed.code() == Code::kNotFound ? no_document(id) : changed.status();
  }
  // An item that ended but is not saved is repeated after a crash, and would set the document back
  // to what its job says. So it is saved before the caller learns that the change will stay.
  if (const Status saved = table_.flush(); !saved.ok() && table_.has_unsaved(ns, id))
    return saved.with_context(
        "the document is changed, but its job could not be saved, so a crash may undo that");
  return describe_whole(*changed);
}

Status StoreCatalog::remove(std::string_view ns, std::string_view id,
                            const DocumentCondition& condition) {
  QUIRE_RETURN_IF_ERROR(catalog_status(store_.catalog_stats()));
  // Until the end nothing is committed here. So what a condition was checked against is what is
  // deleted, and posts that wait are cancelled only by a deletion that was made.
  const JobTable::CommitHold hold(table_, ns, id);
  CommitOptions options;
  if (condition.if_match || condition.if_none_match) {
    QUIRE_RETURN_IF_ERROR(refresh_for(condition, ns, id));
    QUIRE_ASSIGN_OR_RETURN(const DocumentInfo now, get(ns, id));
    QUIRE_RETURN_IF_ERROR(check_condition(condition, now.tag, now.content_hash));
    options.expected_version = now.version;
  }
  // An item that ended but is not saved would be repeated after a crash. Saving comes before the
  // deletion, because the repeated item may be an older version than the deleted one. It comes
  // again after the deletion and before the reply, for the items cancelled here, and for those that
  // a full disk could not take before: the deletion needs no room, and makes some.
  (void)table_.flush_others();
  Status s;
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    s = store_.delete_document(ns, id, options);
    if (s.code() != Code::kNotFound) break;
    // Another replica may be at work on a post from before, or may have made the document just now.
    const Status barred = store_.bar_document(ns, id);
    if (barred.ok()) break;
    s = barred;
    if (barred.code() != Code::kFailedPrecondition) break;
  }
  if (s.code() == Code::kFailedPrecondition && options.expected_version)
    s = s.with_field(condition.if_match ? "If-Match" : "If-None-Match");
  if (!s.ok() && s.code() != Code::kNotFound) return s;
  auto cancelled = table_.cancel_document(ns, id);
  cancelled.release();
  const Status saved = table_.flush();
  // Jobs that cannot bring this document back are saved later. One that can does so after a crash,
  // also where there is no document now.
  const bool safe = saved.ok() || !table_.has_unsaved(ns, id);
  if (safe && s.code() == Code::kNotFound && cancelled.num_items() == 0) return no_document(id);
  if (safe) return {};
  return saved.with_context(
      "the document is deleted, but its job could not be saved, so a crash may bring it back");
}

Result<std::optional<std::string>> StoreCatalog::replacing_job(std::string_view ns,
                                                               std::string_view id) {
  QUIRE_ASSIGN_OR_RETURN(const auto post, table_.pending_post(ns, id));
  return post ? std::optional(post->job_id) : std::nullopt;
}

Status StoreCatalog::settle(std::string_view ns, std::string_view id) {
  return table_.settle(ns, id, /*except=*/{});
}

/// Deletes a document that matched when it had this tag, unless it does not any more. Returns false
/// if it does not.
Result<bool> StoreCatalog::remove_matching(std::string_view ns, const std::string& id,
                                           std::string tag, const DocumentFilter& filter) {
  for (int attempt = 0;; ++attempt) {
    DocumentCondition condition;
    condition.if_match = std::move(tag);
    const Status s = remove(ns, id, condition);
    if (s.ok()) return true;
    if (s.code() != Code::kFailedPrecondition || attempt == kMostTries) return s;
    QUIRE_ASSIGN_OR_RETURN(DocumentInfo now, get(ns, id));
    if (!matches(now, filter)) return false;
    tag = std::move(now.tag);
  }
}

Result<BulkDeleteResult> StoreCatalog::remove_many(std::string_view ns, const BulkDelete& request) {
  if (request.ids.empty() == !request.filter)
    return Status::invalid(request.filter ? "filter" : "ids", "give either ids or filter");
  if (request.filter && request.filter->empty())
    return Status::invalid("filter", "must not be empty; it would delete everything");
  if (!request.dry_run) QUIRE_RETURN_IF_ERROR(catalog_status(store_.catalog_stats()));
  std::vector<std::string> ids = request.ids, tags;
  if (request.filter) {
    DocumentListOptions page;
    page.limit = 100;
    page.descending = false;
    page.filter = *request.filter;
    page.with_cache = false;
    while (true) {
      QUIRE_ASSIGN_OR_RETURN(const DocumentListPage found, list(ns, page));
      for (const DocumentInfo& d : found.documents) {
        ids.push_back(d.id);
        tags.push_back(d.tag);
      }
      if (!found.has_more || found.documents.empty()) break;
      page.after = found.documents.back().id;
    }
  }
  BulkDeleteResult out;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::string& id = ids[i];
    if (!seen.insert(id).second) continue;
    Status s;
    if (request.dry_run) {
      s = get(ns, id).status();
    } else if (request.filter) {
      const auto removed = remove_matching(ns, id, std::move(tags[i]), *request.filter);
      if (removed.ok() && !*removed) continue;
      s = removed.status();
    } else {
      s = remove(ns, id);
    }
    // What was deleted before is told; without any it is as if nothing had been asked for.
    if (catalog_is_away(s) && out.deleted.empty()) return s;
    if (s.ok()) {
      out.deleted.push_back(id);
    } else if (s.code() == Code::kNotFound) {
      out.not_found.push_back(id);
    } else {
      out.failed.emplace_back(id, s);
    }
  }
  return out;
}

}  // namespace quire
