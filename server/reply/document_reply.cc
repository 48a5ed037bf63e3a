#include "server/reply/document_reply.h"

#include <boost/json/array.hpp>

#include "base/json_parse.h"

namespace quire {
namespace json = boost::json;
namespace {

using D = DocumentInfo;

std::optional<std::string_view> tier_of(Tier tier) {
  return tier == Tier::kNone ? std::nullopt : std::optional(tier_name(tier));
}

const Reply<D::Cache>& tiers_reply() {
  using C = D::Cache;
  static const Reply<C> reply("", "Blocks found in each tier; a block may be in two",
                              {{"gpu", kind::count(), [](const C& c) { return c.gpu; }},
                               {"dram", kind::count(), [](const C& c) { return c.dram; }},
                               {"disk", kind::count(), [](const C& c) { return c.disk; }},
                               {"remote", kind::count(), [](const C& c) { return c.remote; }}});
  return reply;
}

const Reply<D::Cache>& document_cache_reply() {
  using C = D::Cache;
  static const Reply<C> reply(
      "", "The document's KV",
      {{"state",
        kind::or_null(
            kind::one_of({"resident", "partial", "evicted", "stale", "lazy", "text_only"})),
        [](const C& c) { return unless_empty(c.state); },
        "stale: made by another model; lazy: not used yet; text_only: no KV is kept"},
       {"fingerprint", kind::or_null(kind::text()),
        [](const C& c) { return unless_empty(c.fingerprint); },
        "Digest of all that changes KV besides tokens"},
       {"kv_dtype", kind::or_null(kind::text()),
        [](const C& c) { return unless_empty(c.kv_dtype); }},
       {"bytes", kind::count(), [](const C& c) { return c.bytes; }, "Found in the store"},
       {"blocks", kind::count(), [](const C& c) { return c.blocks; }, "That the document has"},
       {"tiers", tiers_reply()}});
  return reply;
}

template <class T>
json::array texts(const T& values) {
  return json::array(values.begin(), values.end());
}

}  // namespace

const Reply<ItemFailure>& item_error_reply() {
  using F = ItemFailure;
  static const Reply<F> reply(
      "ItemError", "",
      {{"code", kind::text(), [](const F& f) { return f.error.code; }},
       {"message", kind::text(), [](const F& f) { return f.error.message; }},
       {"param", kind::or_null(kind::text()),
        [](const F& f) { return unless_empty(f.error.param); }, "JSON path of what is wrong"},
       {"id", kind::optional(kind::text()), [](const F& f) { return unless_empty(f.id); },
        "The document"}});
  return reply;
}

std::optional<json::object> item_error_json(const std::optional<ItemError>& error) {
  if (!error) return std::nullopt;
  return item_error_reply().json(ItemFailure{*error});
}

json::object metadata_object(const std::string& text) {
  auto value = parse_json(text);
  return value.ok() && value->is_object() ? std::move(value->as_object()) : json::object();
}

Kind read_behind_kind() { return kind::one_of({"nothing", "lead_in", "related"}); }

Kind document_status() {
  return kind::one_of(
      {"queued", "tokenizing", "prefilling", "storing", "ready", "failed", "deleting"});
}

const Reply<DocumentInfo>& document_reply() {
  static const Reply<D> reply(
      "Document", "",
      {{"id", kind::text(), [](const D& d) { return d.id; }},
       {"object", kind::constant("document")},
       {"namespace", kind::text(), [](const D& d) { return d.ns; }},
       {"title", kind::or_null(kind::text()), [](const D& d) { return unless_empty(d.title); }},
       {"metadata", kind::map(), [](const D& d) { return metadata_object(d.metadata_json); }},
       {"content_hash", kind::text(), [](const D& d) { return d.content_hash; }},
       {"etag", kind::text(), [](const D& d) { return d.tag; },
        "Changes with all that callers set; for If-Match and If-None-Match"},
       {"version", kind::count(), [](const D& d) { return d.version; }},
       {"bytes", kind::count(), [](const D& d) { return d.bytes; }, "Of the text"},
       {"tokens", kind::count(), [](const D& d) { return d.tokens; }},
       {"chunks", kind::count(), [](const D& d) { return d.num_chunks; }},
       {"status", kind::component("DocumentStatus"),
        [](const D& d) { return document_status_name(d.status); },
        "Below ready: it is being ingested, and no earlier version is ready"},
       {"error", kind::or_null(item_error_reply().kind()),
        [](const D& d) { return item_error_json(d.error); }},
       {"pinned", kind::flag(), [](const D& d) { return d.pinned; }},
       {"hits", kind::count(), [](const D& d) { return d.hits; }, "Queries that used it"},
       {"cache", document_cache_reply().kind(),
        [](const D& d) { return document_cache_reply().json(d.cache); }},
       {"read_behind", kind::optional(read_behind_kind()),
        [](const D& d) -> std::optional<std::string_view> {
          if (!d.read_behind) return std::nullopt;
          return read_behind_name(d.read_behind->kind);
        },
        "What stood before it when its KV was computed; absent in lists, without KV, and while it "
        "is not ready"},
       {"job_id", kind::optional(kind::text()),
        [](const D& d) { return d.progress ? unless_empty(d.job_id) : std::nullopt; },
        "The job that works on it"},
       {"progress", kind::optional(kind::ratio(3)), [](const D& d) { return d.progress; },
        "While a job works on it"},
       {"created_at", kind::time_or_null(),
        [](const D& d) { return rfc3339_or_null(d.created_ms); }},
       {"updated_at", kind::time_or_null(),
        [](const D& d) { return rfc3339_or_null(d.updated_ms); }},
       {"last_used_at", kind::time_or_null(),
        [](const D& d) { return rfc3339_or_null(d.last_used_ms); }, "null: never"},
       {"expires_at", kind::time_or_null(),
        [](const D& d) {
          return d.expires_at_ms ? std::optional(rfc3339(*d.expires_at_ms)) : std::nullopt;
        },
        "null: it does not expire"}});
  return reply;
}

json::object document_json(const DocumentInfo& info) { return document_reply().json(info); }

const Reply<DocumentCounts>& document_counts_reply() {
  using C = DocumentCounts;
  static const Reply<C> reply(
      "DocumentCounts", "Documents of the namespace",
      {{"total", kind::count(), [](const C& c) { return c.total; }},
       {"ready", kind::count(), [](const C& c) { return c.ready; }},
       {"failed", kind::count(), [](const C& c) { return c.failed; }},
       {"in_progress", kind::count(), [](const C& c) { return c.in_progress; }},
       {"tokens", kind::count(), [](const C& c) { return c.tokens; }},
       {"bytes", kind::count(), [](const C& c) { return c.text_bytes; }, "Of their texts"}});
  return reply;
}

const Reply<ChunkInfo>& chunk_reply() {
  using C = ChunkInfo;
  static const Reply<C> reply(
      "Chunk", "A part of a document that is cached on its own",
      {{"index", kind::count(), [](const C& c) { return c.index; }},
       {"chars", kind::range(),
        [](const C& c) {
          return json::array{c.char_begin, c.char_end};
        },
        "Unicode code points of the document's text"},
       {"bytes", kind::range(),
        [](const C& c) {
          return json::array{c.byte_begin, c.byte_end};
        }},
       {"tokens", kind::count(), [](const C& c) { return c.tokens; }},
       {"blocks", kind::count(), [](const C& c) { return c.blocks; }},
       {"block_tokens", kind::count(), [](const C& c) { return c.block_tokens; },
        "Tokens of a block"},
       {"tier", kind::tier_or_null(), [](const C& c) { return tier_of(c.tier); },
        "Best tier of its first block"},
       {"page", kind::optional(kind::count()), [](const C& c) { return page_of(c.place); },
        "Where it begins, from 1; absent: the document has no pages"},
       {"last_page", kind::optional(kind::count()),
        [](const C& c) { return last_page_of(c.place); }, "Where it ends"},
       {"heading", kind::optional(kind::text()),
        [](const C& c) { return unless_empty(c.place.heading); },
        "Path of headings where it begins: \"Chapter 2 > Safety\""}});
  return reply;
}

json::object chunk_json(const ChunkInfo& chunk) { return chunk_reply().json(chunk); }

const Reply<BlockInfo>& stored_block_reply() {
  using B = BlockInfo;
  static const Reply<B> reply(
      "Block", "One block of a chunk's KV",
      {{"index", kind::count(), [](const B& b) { return b.index; }, "In the document"},
       {"block_id", kind::text(), [](const B& b) { return b.block_id; }},
       {"chunk", kind::count(), [](const B& b) { return b.chunk; }},
       {"tokens", kind::range(),
        [](const B& b) {
          return json::array{b.token_begin, b.token_end};
        },
        "Of the chunk"},
       {"chars", kind::or_null(kind::range()),
        [](const B& b) {
          return b.char_begin && b.char_end ? std::optional(json::array{*b.char_begin, *b.char_end})
                                            : std::nullopt;
        },
        "Unicode code points of the document's text; null: the model has changed since"},
       {"tier", kind::tier_or_null(), [](const B& b) { return tier_of(b.tier); }}});
  return reply;
}

json::object block_json(const BlockInfo& block) { return stored_block_reply().json(block); }

const Reply<BulkDeletion>& bulk_deletion_reply() {
  using B = BulkDeletion;
  static const Reply<B> reply(
      "BulkDeletion", "",
      {{"object", kind::constant("documents.delete")},
       {"dry_run", kind::flag(), [](const B& b) { return b.dry_run; },
        "true: nothing was deleted, and `deleted` names what would be"},
       {"count", kind::count(), [](const B& b) { return b.result.deleted.size(); }},
       {"deleted", kind::list(kind::text()), [](const B& b) { return texts(b.result.deleted); }},
       {"not_found", kind::list(kind::text()),
        [](const B& b) { return texts(b.result.not_found); }},
       {"failed", kind::list(item_error_reply().kind()), [](const B& b) {
          json::array out;
          for (const auto& [id, error] : b.failed)
            out.push_back(item_error_reply().json({error, id}));
          return out;
        }}});
  return reply;
}

}  // namespace quire
