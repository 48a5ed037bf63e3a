#include "cachestore/pack/pack_transfer.h"

#include <algorithm>
#include <map>
#include <unordered_set>
#include <utility>

#include "base/log.h"

namespace quire {
namespace {

/// Returns requests for the values of a segment in order: KV, then sketches.
std::vector<ReadRequest> all_values(const SegmentHandle& segment) {
  std::vector<ReadRequest> out;
  const SegmentLayout& layout = segment->layout;
  for (std::uint32_t block = 0; block < layout.num_blocks; ++block)
    for (std::uint32_t group = 0; group < layout.values_per_block; ++group)
      out.push_back({segment, block, group, ReadKind::kValue});
  for (std::uint32_t i = 0; i < layout.num_sketches; ++i)
    out.push_back({segment, i, 0, ReadKind::kSketch});
  return out;
}

Status write_segment(AdminStore& store, const SegmentHandle& segment, PackWriter& writer) {
  PackSegment head{segment->key, segment->layout, segment->value_bytes, segment->sketch_bytes,
                   segment->fingerprint};
  QUIRE_RETURN_IF_ERROR(writer.segment(head));
  for (const auto& request : all_values(segment)) {
    const auto bytes = store.peek_value(request);
    if (!bytes.ok()) {
      // The rest of this segment is left out. The importer finds it incomplete, which is a miss.
      log_warning("KV was left out of an export", {{"reason", bytes.status().to_string()}});
      return {};
    }
    const auto part = request.kind == ReadKind::kSketch ? record::Part::kSketch
                                                        : record::Part::kValue;
    QUIRE_RETURN_IF_ERROR(writer.value(part, request.block, request.group, bytes->bytes()));
  }
  return {};
}

/// Reads a ready document and its text, which belong together. Returns false if there is none, as
/// it was deleted or replaced meanwhile or cannot be read.
bool read_document(AdminStore& store, const std::string& ns, const std::string& id,
                   PackDocument* out) {
  constexpr int kMostReads = 10;
  for (int i = 0; i < kMostReads; ++i) {
    auto manifest = store.get_document(ns, id);
    if (!manifest.ok() || manifest->status != DocumentStatus::kReady) return false;
    auto text = store.get_text(ns, id);
    const auto after = store.get_document_head(ns, id);
    if (!after.ok()) return false;
    // A document that was deleted and posted anew begins at version 1 again.
    if (after->version != manifest->version || after->created_ms != manifest->created_ms ||
        after->content_hash != manifest->content_hash)
      continue;
    if (!text.ok()) return false;
    out->manifest = std::move(*manifest);
    out->text = std::move(*text);
    return true;
  }
  log_warning("a document was left out of an export: it changes faster than it can be read",
              {{"namespace", ns}, {"document_id", id}});
  return false;
}

/// Damage of the store's record is none of the pack.
Status of_store(const Status& s) {
  return s.code() == Code::kCorruption ? Status::io(s.message()) : s;
}

/// Imports one document into the store.
class Importer {
 public:
  Importer(Store& store, const ImportOptions& options) : store_(store), options_(options) {}

  void document(PackDocument d) {
    manifest_ = std::move(d.manifest);
    text_ = std::move(d.text);
    open_ = true;
    stale_ = manifest_.fingerprint != options_.fingerprint;
    pack_id_ = manifest_.id;
    manifest_.ns = options_.ns;
    manifest_.job_id.clear();
    manifest_.companions.clear();
    for (std::size_t i = 0; i < manifest_.chunks.size(); ++i) {
      DocumentChunk& chunk = manifest_.chunks[i];
      if (chunk.key.is_zero()) continue;
      // A stale document's, too: the pack's key may be that of another tenant's KV.
      const ContextKey here = options_.key_of(chunk.token_ids, manifest_.salt_digest,
                                              left_context(manifest_, i));
      if (!stale_) keys_[chunk.key] = here;
      chunk.key = here;
    }
  }

  Status segment(const PackSegment& s) {
    QUIRE_RETURN_IF_ERROR(close_segment());
    const auto here = keys_.find(s.key);
    // The segment is of another model or of no chunk
    if (here == keys_.end() || s.value_bytes > UINT64_MAX / 8 || s.sketch_bytes > UINT64_MAX / 8)
      return {};
    if (auto there = store_.peek_segment(here->second)) {
      handles_.push_back(std::move(*there));
      return {};
    }
    auto writer = store_.begin_segment(here->second, s.layout, s.value_bytes + s.sketch_bytes,
                                       options_.tenant, s.fingerprint);
    if (writer.ok()) {
      writer_ = std::move(*writer);
      blocks_of_writer_ = s.layout.num_blocks;
      return {};
    }
    return without_kv(writer.status());
  }

  Status value(const PackValue& v) {
    if (!writer_) return {};
    const auto bytes = std::as_bytes(std::span(v.bytes.data(), v.bytes.size()));
    const Status s = v.part == record::Part::kSketch ? writer_->put_sketch(v.block, bytes)
                                                     : writer_->put_value(v.block, v.group, bytes);
    if (s.ok()) return {};
    writer_.reset();
    return without_kv(s);
  }

  Status finish_document() {
    QUIRE_RETURN_IF_ERROR(close_segment());
    if (!std::exchange(open_, false)) return {};
    const auto handles = std::exchange(handles_, {});
    keys_.clear();
    const std::uint64_t blocks = std::exchange(blocks_, 0);
    if (const Status s = options_.check_id ? options_.check_id(pack_id_) : Status(); !s.ok()) {
      report_.rejected.push_back({pack_id_, s.message()});
      return {};
    }
    if (options_.before_commit) QUIRE_RETURN_IF_ERROR(options_.before_commit(manifest_.id));
    const auto there = store_.get_document_head(options_.ns, manifest_.id);
    if (there.ok() && is_same(*there)) {
      QUIRE_RETURN_IF_ERROR(of_store(store_.commit_segments(handles).status()));
      ++report_.skipped;
      report_.blocks += blocks;
      return {};
    }
    Status s = options_.admit ? options_.admit(manifest_, text_.size()) : Status();
    if (s.ok()) s = of_store(store_.commit_document(std::move(manifest_), text_, handles).status());
    if (!s.ok()) {
      if (s.code() == Code::kIo || s.code() == Code::kFailedPrecondition) return s;
      report_.rejected.push_back({pack_id_, s.message()});
      return {};
    }
    ++report_.documents;
    report_.blocks += blocks;
    report_.stale += stale_ ? 1 : 0;
    return {};
  }

  ImportReport take() { return std::move(report_); }

 private:
  /// Whether the stored document is the pack's, cut and salted alike, and its chunks name the KV
  /// that comes with the pack. KV that saw other related chunks has other names.
  bool is_same(const DocumentManifest& there) const {
    return there.status == DocumentStatus::kReady && there.content_hash == manifest_.content_hash &&
           there.title == manifest_.title && there.metadata_json == manifest_.metadata_json &&
           there.chunking == manifest_.chunking && there.salt_digest == manifest_.salt_digest &&
           there.fingerprint == manifest_.fingerprint && (stale_ || names_kv_of_pack(there));
  }
  /// A chunk without a key in the pack has no KV there.
  bool names_kv_of_pack(const DocumentManifest& there) const {
    return std::ranges::equal(there.chunks, manifest_.chunks,
                              [](const DocumentChunk& stored, const DocumentChunk& packed) {
                                return packed.key.is_zero() || stored.key == packed.key;
                              });
  }
  /// Ignores errors of KV, which is only cache: a document is stored without KV that has no room.
  static Status without_kv(const Status& why) {
    if (why.code() == Code::kIo || why.code() == Code::kFailedPrecondition) return why;
    log_info("KV was left out of an import", {{"reason", why.to_string()}});
    return {};
  }
  Status close_segment() {
    if (!writer_) return {};
    auto handle = writer_->finish();
    writer_.reset();
    if (handle.ok()) {
      handles_.push_back(std::move(*handle));
      blocks_ += blocks_of_writer_;
      return {};
    }
    // The segment is incomplete in the pack, or there is no room
    return handle.code() == Code::kIo ? handle.status() : Status();
  }

  Store& store_;
  const ImportOptions& options_;
  ImportReport report_;
  DocumentManifest manifest_;
  std::string text_, pack_id_;
  bool open_ = false, stale_ = false;
  std::map<ContextKey, ContextKey> keys_;  // key in the pack -> key in the store
  std::vector<SegmentHandle> handles_;
  std::unique_ptr<SegmentWriter> writer_;
  std::uint64_t blocks_of_writer_ = 0, blocks_ = 0;
};

}  // namespace

Result<std::vector<std::string>> ready_documents(Store& store, const std::string& ns) {
  std::vector<std::string> ids;
  ListOptions options;
  options.limit = 1000;
  options.filter = [](const DocumentManifest& m) { return m.status == DocumentStatus::kReady; };
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const auto page, store.list_documents(ns, options));
    for (const auto& d : page.documents) ids.push_back(d.id);
    if (!page.has_more || page.documents.empty()) return ids;
    options.after = page.documents.back().id;
  }
}

Status export_documents(AdminStore& store, const std::string& ns,
                        const std::vector<std::string>& ids, const PackHeader& header,
                        const PackWriter::Sink& sink) {
  for (const auto& id : ids)
    if (const auto head = store.get_document_head(ns, id); !head.ok())
      return head.status().with_field(id);
  PackWriter writer(sink);
  QUIRE_RETURN_IF_ERROR(writer.header(header));
  std::unordered_set<ContextKey, DigestHash> written;
  for (const auto& id : ids) {
    PackDocument document;
    if (!read_document(store, ns, id, &document)) continue;
    document.manifest.companions.clear();  // companions are not exported
    QUIRE_RETURN_IF_ERROR(writer.document(document.manifest, document.text));
    for (const auto& chunk : document.manifest.chunks) {
      if (chunk.key.is_zero() || written.contains(chunk.key)) continue;
      const auto segment = store.peek_segment(chunk.key);
      if (!segment) continue;
      QUIRE_RETURN_IF_ERROR(write_segment(store, *segment, writer));
      written.insert(chunk.key);
    }
  }
  return writer.end();
}

Result<ImportReport> import_pack(Store& store, PackReader& reader, const ImportOptions& options) {
  Importer importer(store, options);
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(auto next, reader.next());
    if (!next) break;
    if (auto* document = std::get_if<PackDocument>(&*next)) {
      QUIRE_RETURN_IF_ERROR(importer.finish_document());
      importer.document(std::move(*document));
    } else if (const auto* segment = std::get_if<PackSegment>(&*next)) {
      QUIRE_RETURN_IF_ERROR(importer.segment(*segment));
    } else if (const auto* value = std::get_if<PackValue>(&*next)) {
      QUIRE_RETURN_IF_ERROR(importer.value(*value));
    } else if (std::holds_alternative<PackEnd>(*next)) {
      QUIRE_RETURN_IF_ERROR(importer.finish_document());
    }
  }
  return importer.take();
}

Result<PackEnd> check_pack(PackReader& reader) {
  PackEnd end;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const auto next, reader.next());
    if (!next) return end;
    if (const auto* last = std::get_if<PackEnd>(&*next)) end = *last;
  }
}

}  // namespace quire
