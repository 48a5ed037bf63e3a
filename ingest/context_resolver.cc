#include "ingest/context_resolver.h"

#include <string>

#include "ingest/document/related_chunks.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"

namespace quire {
namespace {

/// Reads of a document that changes all the time, before its readers are told so.
constexpr int kMostTries = 10;

}  // namespace

Result<Resolved> ContextResolver::resolve(std::string_view ns, std::span<const std::string> ids,
                                          const ResolveOptions& options) {
  QUIRE_RETURN_IF_ERROR(check_salt(options.cache_salt));
  const Digest salt = salt_digest_of(options.cache_salt);
  Resolved out;
  out.tenant = options_.tenant(ns);
  out.salt_digest = to_bytes(salt);
  Renditions::Grants grants;
  for (const std::string& id : ids) {
    // This is read before the store: once the job has ended, the store has the document.
    auto pending = table_.pending(ns, id);
    const auto read = [&] {
      return renditions_ ? renditions_->get(ns, id, options.touch ? &grants : nullptr)
                         : store_.get_document(ns, id);
    };
    auto m = read();
    if (m.code() == Code::kNotFound && !pending) {  // here; another replica may know more
      QUIRE_ASSIGN_OR_RETURN(pending, table_.pending_elsewhere(ns, id));
      QUIRE_RETURN_IF_ERROR(store_.refresh_document(ns, id));
      m = read();
    }
    if (!m.ok() && m.code() != Code::kNotFound) return m.status();
    if (m.ok() && m->status == DocumentStatus::kReady) {
      auto d = resolve_ready(std::move(*m), salt);
      if (d.code() == Code::kNotFound) {  // deleted meanwhile
        out.missing.push_back(id);
        continue;
      }
      QUIRE_RETURN_IF_ERROR(d.status());
      if (options.touch) store_.touch_document(ns, id);
      out.documents.push_back(std::move(*d));
      continue;
    }
    if (pending) {
      if (options.compute_pending) {
        auto d = resolve_pending(ns, *pending);
        if (d.ok()) {
          out.documents.push_back(std::move(*d));
          continue;
        }
      }
      out.not_ready.push_back(
          {id, pending->job_id, pending->status, pending->progress, std::nullopt});
    } else if (m.ok()) {
      out.not_ready.push_back(
          {id, m->job_id, m->status, 0, ItemError{m->error_code, m->error_message, ""}});
    } else {
      out.missing.push_back(id);
    }
  }
  return out;
}

/// The text of a stale document is read after its manifest: only if nothing was committed between
/// do they belong together.
Result<ResolvedDocument> ContextResolver::resolve_ready(DocumentManifest m, const Digest& salt) {
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    const bool stale = m.fingerprint != engine_.document_fingerprint(m.ns);
    QUIRE_ASSIGN_OR_RETURN(const bool forgotten, forget_vanished(m, stale));
    if (!stale) return resolved(m, salt, forgotten);
    QUIRE_ASSIGN_OR_RETURN(const std::string text, store_.get_text(m.ns, m.id));
    auto anew = retokenise(engine_, m, text, chunk_limits(engine_, options_));
    QUIRE_ASSIGN_OR_RETURN(const DocumentManifest now, store_.get_document_head(m.ns, m.id));
    if (!is_unchanged(m, now)) {
      QUIRE_ASSIGN_OR_RETURN(m, store_.get_document(m.ns, m.id));
      continue;
    }
    QUIRE_RETURN_IF_ERROR(anew.status());
    m.num_tokens = 0;
    for (std::size_t i = 0; i < anew->size(); ++i) {
      m.chunks[i].token_ids = std::move((*anew)[i].token_ids);
      m.chunks[i].left_chunks = (*anew)[i].left_chunks;
      m.num_tokens += m.chunks[i].token_ids.size();
    }
    return resolved(m, salt, forgotten);
  }
  return Status::unavailable("document '" + m.id + "' changes faster than it can be read");
}

/// Returns a version of a document whose chunks have this model's tokens. `unnamed`: their keys are
/// not those that the document names.
ResolvedDocument ContextResolver::resolved(const DocumentManifest& m, const Digest& salt,
                                           bool unnamed) const {
  ResolvedDocument d;
  d.id = m.id;
  d.title = m.title;
  d.content_hash = m.content_hash;
  d.metadata_json = m.metadata_json;
  d.chunking = m.chunking;
  d.version = m.version;
  d.tokens = m.num_tokens;
  d.stale = m.fingerprint != engine_.document_fingerprint(m.ns);
  d.other_salt = m.salt_digest != salt;
  const ReadBehind behind = read_behind(m.related);
  for (std::size_t i = 0; i < m.chunks.size(); ++i) {
    const DocumentChunk& c = m.chunks[i];
    QueryContext context;
    context.document_id = m.id;
    context.title = m.title;
    context.chunk = static_cast<std::int32_t>(i);
    context.token_ids = c.token_ids;
    context.left_context = left_context(m, i);
    context.read_behind = behind;
    if (!c.key.is_zero()) context.key = c.key;
    context.unnamed = unnamed;
    context.lazy = renditions_ != nullptr || kv_policy(m) == KvPolicy::kLazy;
    d.contexts.push_back(std::move(context));
    d.byte_ranges.emplace_back(c.byte_begin, c.byte_end);
  }
  return d;
}

/// KV that has seen a text that is deleted or changed, or may be seen no more, is not used. Until
/// the document's KV is made anew, which this asks for, each query computes it without related
/// chunks. Returns whether the chunks have got other keys, which the document does not name.
Result<bool> ContextResolver::forget_vanished(DocumentManifest& m, bool stale) {
  if (m.related.empty()) return false;
  if (!stale) {
    QUIRE_ASSIGN_OR_RETURN(const bool current,
                           RelatedChunks(store_, options_.find_chunks, may_be_seen).are_current(m));
    if (current) return false;
    if (refresh_) refresh_(m.ns, m.id);
  }
  // A fixed text of this model's tokens stays.
  std::erase_if(m.related, [&](const RelatedChunk& r) { return stale || !r.document_id.empty(); });
  for (std::size_t i = 0; i < m.chunks.size(); ++i) {
    DocumentChunk& c = m.chunks[i];
    if (!stale && !c.key.is_zero())
      c.key = engine_.names().context_key(c.token_ids, options_.tenant(m.ns),
                                          to_bytes(m.salt_digest), left_context(m, i));
  }
  return !stale;
}

Result<ResolvedDocument> ContextResolver::resolve_pending(std::string_view ns,
                                                          const PendingDocument& pending) {
  QUIRE_ASSIGN_OR_RETURN(DocumentInput input, table_.input(pending));
  ResolvedDocument d;
  d.id = pending.id;
  d.title = input.title;
  d.content_hash = pending.content_hash;
  d.metadata_json = input.metadata_json;
  d.chunking = settings_text(pending.settings->chunking, input.chunks.has_value(), input.title,
                             input.marks, pending.settings->kv);
  d.pending = true;
  const PreparedText prepared = prepare_text(std::move(input));
  QUIRE_ASSIGN_OR_RETURN(auto chunks,
                         cut(engine_, ns, d.title, prepared, pending.settings->chunking,
                             chunk_limits(engine_, options_)));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    d.tokens += chunks[i].token_ids.size();
    QueryContext context;
    context.document_id = d.id;
    context.title = d.title;
    context.chunk = static_cast<std::int32_t>(i);
    context.token_ids = chunks[i].token_ids;
    context.left_context = left_context(chunks, i);
    d.contexts.push_back(std::move(context));
    d.byte_ranges.emplace_back(chunks[i].range.begin, chunks[i].range.end);
  }
  return d;
}

}  // namespace quire
