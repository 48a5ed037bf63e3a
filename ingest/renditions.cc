#include "ingest/renditions.h"

#include <iterator>
#include <limits>
#include <unordered_set>

#include "base/index.h"
#include "base/log.h"
#include "ingest/names.h"
#include "ingest/prepared_text.h"

namespace quire {
namespace {

/// Reads of a document that changes all the time, before its readers are told so.
constexpr int kMostTries = 100;

std::string name_of(std::string_view ns, std::string_view id) {
  std::string name(ns);
  name.push_back('\0');
  return name.append(id);
}

}  // namespace

Result<DocumentManifest> Renditions::get(std::string_view ns, std::string_view id, Grants* grants) {
  const std::string fingerprint = engine_.document_fingerprint(ns);
  for (int attempt = 0; attempt < kMostTries; ++attempt) {
    QUIRE_ASSIGN_OR_RETURN(DocumentManifest m, store_.get_document_head(ns, id));
    if (m.status != DocumentStatus::kReady) return store_.get_document(ns, id);
    if (m.fingerprint == fingerprint) {
      // What was ingested for a model of this very fingerprint needs no rendition, unless the two
      // have blocks or values of other sizes.
      auto whole = store_.get_document(ns, id);
      if (!whole.ok() || kv_policy(*whole) == KvPolicy::kTextOnly ||
          has_keys_of(engine_, options_, *whole))
        return whole;
    }
    auto chunks = chunks_of(m);
    // The text was read after the manifest: only if that is still the same do they belong together.
    QUIRE_ASSIGN_OR_RETURN(const DocumentManifest stored, store_.get_document_head(ns, id));
    if (!is_unchanged(m, stored)) continue;
    QUIRE_RETURN_IF_ERROR(chunks.status());
    m = stored;
    m.chunks = **chunks;
    m.fingerprint = fingerprint;
    m.num_tokens = 0;
    for (const DocumentChunk& c : m.chunks) m.num_tokens += c.num_tokens;
    const Status kept = grants ? keep(stored, m, *grants) : Status();
    if (kept.code() == Code::kFailedPrecondition) continue;
    if (kept.code() == Code::kNotFound) return kept;
    // The query is answered all the same; only its KV may not stay.
    if (!kept.ok())
      log_warning("the KV of a document for another model is not kept",
                  {{"document_id", m.id}, {"reason", kept.to_string()}});
    return m;
  }
  return Status::unavailable("document '" + std::string(id) +
                             "' changes faster than it can be read");
}

Result<Renditions::Chunks> Renditions::chunks_of(const DocumentManifest& manifest) {
  if (Chunks known = remembered(manifest)) return known;
  QUIRE_ASSIGN_OR_RETURN(const std::string text, store_.get_text(manifest.ns, manifest.id));
  QUIRE_ASSIGN_OR_RETURN(Chunks made, make(manifest, text));
  QUIRE_ASSIGN_OR_RETURN(const DocumentManifest now,
                         store_.get_document_head(manifest.ns, manifest.id));
  if (is_unchanged(manifest, now)) remember(manifest, made);
  return made;
}

Result<Renditions::Chunks> Renditions::make(const DocumentManifest& manifest,
                                            std::string_view text) const {
  // The document was taken in, so only the window of this model limits it here.
  ChunkLimits limits = chunk_limits(engine_, options_);
  limits.document_tokens = std::numeric_limits<std::int64_t>::max();
  auto cut = retokenise(engine_, manifest, text, limits);
  if (cut.code() == Code::kInvalidArgument)
    return Status::invalid("model", "the document '" + manifest.id + "' has a chunk (" +
                                        cut.status().field() + ") that the model '" +
                                        engine_.info().model_name +
                                        "' cannot take: " + cut.status().message() +
                                        "; ask another model, or post the document in smaller "
                                        "chunks");
  if (!cut.ok()) return cut.status();
  const bool kept = kv_policy(manifest) != KvPolicy::kTextOnly;
  const std::string tenant = options_.tenant(manifest.ns);
  auto chunks = std::make_shared<std::vector<DocumentChunk>>();
  for (std::size_t i = 0; i < cut->size(); ++i) {
    Chunk& from = (*cut)[i];
    DocumentChunk c;
    c.byte_begin = from.range.begin;
    c.byte_end = from.range.end;
    c.num_tokens = static_cast<std::uint32_t>(from.token_ids.size());
    c.block_tokens = static_cast<std::uint32_t>(
        engine_.names().block_tokens_for(count_of(from.token_ids)));
    c.left_chunks = from.left_chunks;
    if (kept)
      c.key = engine_.names().context_key(from.token_ids, tenant, to_bytes(manifest.salt_digest),
                                          left_context(*cut, i));
    c.token_ids = from.token_ids;  // the left context of those behind it
    chunks->push_back(std::move(c));
  }
  return Chunks(std::move(chunks));
}

/// Has the stored document name the keys of its rendition. Clears them where its KV may not stay.
Status Renditions::keep(const DocumentManifest& stored, DocumentManifest& rendition,
                        Grants& grants) {
  const std::unordered_set<ContextKey, DigestHash> named(stored.companions.begin(),
                                                         stored.companions.end());
  std::vector<ContextKey> more;
  std::uint64_t tokens = 0;
  for (const DocumentChunk& c : rendition.chunks) {
    if (c.key.is_zero() || named.contains(c.key)) continue;
    more.push_back(c.key);
    tokens += c.num_tokens;
  }
  if (more.empty()) return {};
  if (stored.pinned) {
    const auto per_token = static_cast<std::uint64_t>(engine_.info().kv_bytes_per_token);
    auto grant = pins_.grant({tokens * per_token, 0});
    if (!grant.ok()) {
      for (DocumentChunk& c : rendition.chunks) c.key = ContextKey();
      return grant.code() == Code::kResourceExhausted ? Status() : grant.status();
    }
    grants.push_back(std::move(*grant));
  }
  return store_.add_companions(stored, more);
}

Renditions::Chunks Renditions::remembered(const DocumentManifest& manifest) {
  const std::lock_guard lock(mu_);
  const auto found = by_name_.find(name_of(manifest.ns, manifest.id));
  if (found == by_name_.end() || !has_same_chunks(found->second->source, manifest)) return nullptr;
  recent_.splice(recent_.begin(), recent_, found->second);
  return found->second->chunks;
}

void Renditions::remember(const DocumentManifest& manifest, Chunks chunks) {
  Remembered made{.name = name_of(manifest.ns, manifest.id), .source = {}, .chunks = chunks};
  made.source.content_hash = manifest.content_hash;
  made.source.chunking = manifest.chunking;
  made.source.salt_digest = manifest.salt_digest;
  made.source.fingerprint = manifest.fingerprint;
  for (const DocumentChunk& c : *chunks) made.tokens += c.token_ids.size();
  const std::lock_guard lock(mu_);
  ++made_;
  const auto forget = [this](std::list<Remembered>::iterator it) {
    tokens_ -= it->tokens;
    by_name_.erase(it->name);
    recent_.erase(it);
  };
  if (const auto old = by_name_.find(made.name); old != by_name_.end()) forget(old->second);
  if (made.tokens > kMostTokens) return;
  while (tokens_ + made.tokens > kMostTokens) forget(std::prev(recent_.end()));
  tokens_ += made.tokens;
  recent_.push_front(std::move(made));
  by_name_.emplace(recent_.front().name, recent_.begin());
}

std::int64_t Renditions::made() const {
  const std::lock_guard lock(mu_);
  return made_;
}

}  // namespace quire
