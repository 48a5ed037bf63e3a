#include "server/json/document_codec.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "server/json/parse.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::int64_t kMaxTtl = 10'000'000'000;

void read_chunking(ObjectReader& parent, ChunkingOptions& out) {
  const auto* value = parent.raw("chunking");
  if (!value || !parent.ok()) return;
  ObjectReader r(*value, parent.path_of("chunking"));
  std::string strategy = "tokens";
  std::int64_t max_tokens = out.max_tokens, overlap = out.overlap_tokens;
  r.one_of("strategy", strategy, {"tokens", "markdown", "separator", "none"});
  r.integer("max_tokens", max_tokens, 1, 1 << 24);
  r.integer("overlap_tokens", overlap, 0, 1 << 24);
  r.string("separator", out.separator, 64);
  r.finish();
  out.strategy = parse_chunk_strategy(strategy).value_or(ChunkStrategy::kTokens);
  out.max_tokens = static_cast<std::int32_t>(max_tokens);
  out.overlap_tokens = static_cast<std::int32_t>(overlap);
  parent.adopt(r.error());
}

void read_options(ObjectReader& r, BatchOptions& out) {
  std::string if_exists = "upsert", anchor = "created", tier = out.tier;
  r.one_of("if_exists", if_exists, {"upsert", "skip", "error"});
  read_chunking(r, out.chunking);
  if (r.has("ttl_seconds")) {
    std::int64_t ttl = 1;
    r.integer("ttl_seconds", ttl, 1, kMaxTtl);
    out.ttl_seconds = static_cast<std::uint64_t>(ttl);
  }
  r.one_of("ttl_anchor", anchor, {"created", "last_used"});
  r.boolean("pinned", out.pinned);
  r.one_of("tier", tier, {"dram", "disk", "gpu", "remote"});
  if (r.ok() && (tier == "gpu" || tier == "remote"))
    r.fail("tier", "tier is '" + tier + "', which this build does not have; use dram or disk");
  r.string("cache_salt", out.cache_salt, 512);
  out.if_exists = parse_if_exists(if_exists).value_or(IfExists::kUpsert);
  out.ttl_anchor = anchor == "last_used" ? TtlAnchor::kLastUsed : TtlAnchor::kCreated;
  out.tier = tier;
}

void read_members(ObjectReader& r, DocumentInput& out) {
  if (r.has("id")) {
    std::string id;
    r.string("id", id, 4096);
    out.id = std::move(id);
  }
  r.string("title", out.title, 64 << 10);
  if (r.has("text")) {
    std::string text;
    r.string("text", text);
    out.text = std::move(text);
  }
  if (r.has("chunks")) out.chunks = r.strings("chunks", 1 << 20);
  if (const auto* metadata = r.object("metadata")) out.metadata_json = json::serialize(*metadata);
  if (!r.ok()) return;
  if (out.text && out.chunks)
    r.fail("chunks",
           r.path_of("text") + " and " + r.path_of("chunks") + " are both given; give exactly one");
  if (!out.text && !out.chunks)
    r.fail("text", r.path_of("text") + " is missing; give text or chunks");
}

json::value or_null(const std::string& s) {
  if (s.empty()) return nullptr;
  return json::value(s);
}

json::value metadata_value(const std::string& text) {
  if (text.empty()) return json::object();
  auto v = parse_json(text);
  return v.ok() ? std::move(*v) : json::value(json::object());
}

json::value error_value(const std::optional<ItemError>& e) {
  if (!e) return nullptr;
  json::object o;
  o["code"] = e->code;
  o["message"] = e->message;
  o["param"] = or_null(e->param);
  return o;
}

json::object counts_json(const JobCounts& c) {
  return {{"total", c.total},
          {"completed", c.completed},
          {"in_progress", c.in_progress},
          {"failed", c.failed},
          {"cancelled", c.cancelled}};
}

json::array results_json(const JobSnapshot& job) {
  json::array out;
  for (const auto& item : job.results) {
    json::object o;
    o["index"] = item.index;
    o["id"] = or_null(item.id);
    if (item.result == ItemResult::kPending)
      o["result"] = nullptr;
    else
      o["result"] = item_result_name(item.result);
    o["status"] = document_status_name(item.status);
    o["tokens"] = item.tokens;
    o["blocks"] = item.blocks;
    if (item.error) o["error"] = error_value(item.error);
    out.push_back(std::move(o));
  }
  return out;
}

Result<std::int64_t> to_integer(const std::string& text, std::int64_t min, std::int64_t max) {
  std::int64_t v = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (ec != std::errc() || end != text.data() + text.size() || v < min || v > max)
    return Status::invalid("", "'" + text.substr(0, 64) + "' must be an integer between " +
                                   std::to_string(min) + " and " + std::to_string(max));
  return v;
}

}  // namespace

std::optional<ReadError> read_document(const json::value& value, const std::string& path,
                                       DocumentInput& out) {
  ObjectReader r(value, path);
  if (r.ok()) read_members(r, out);
  r.finish();
  return r.error();
}

std::optional<ReadError> read_batch(const json::value& body, std::size_t max_documents,
                                    DocumentBatch& out) {
  ObjectReader r(body, "");
  if (!r.ok()) return r.error();
  read_options(r, out.options);
  if (!body.as_object().contains("documents")) {
    out.options.in_batch = false;
    out.documents.emplace_back();
    read_members(r, out.documents.back());
    (void)r.raw("documents");
    r.finish();
    return r.error();
  }
  const auto* list = r.array("documents", 1, max_documents);
  if (!list && r.ok()) r.fail("documents", "documents must be an array, not null");
  r.finish();
  if (!r.ok()) return r.error();
  out.documents.resize(list->size());
  for (std::size_t i = 0; i < list->size(); ++i)
    if (auto e = read_document((*list)[i], "documents[" + std::to_string(i) + "]",
                               out.documents[i]))
      return e;
  return std::nullopt;
}

std::optional<ReadError> read_put(const json::value& body, const std::string& id,
                                  DocumentBatch& out) {
  out.options.in_batch = false;
  out.documents.resize(1);
  ObjectReader r(body, "");
  if (!r.ok()) return r.error();
  read_options(r, out.options);
  read_members(r, out.documents[0]);
  if (r.ok() && out.documents[0].id && *out.documents[0].id != id)
    r.fail("id", "id is not the one in the path; leave it out");
  out.documents[0].id = id;
  r.finish();
  return r.error();
}

bool read_option(std::string_view name, const std::string& value, BatchOptions& out,
                 std::optional<ReadError>& error) {
  const auto wrong = [&](const std::string& message) {
    error = ReadError{"invalid_value", std::string(name) + ": " + message, std::string(name)};
  };
  if (name == "if_exists") {
    const auto v = parse_if_exists(value);
    if (!v)
      wrong("use upsert, skip or error");
    else
      out.if_exists = *v;
  } else if (name == "ttl_seconds") {
    const auto v = to_integer(value, 1, kMaxTtl);
    if (!v.ok())
      wrong(v.status().message());
    else
      out.ttl_seconds = static_cast<std::uint64_t>(*v);
  } else if (name == "ttl_anchor") {
    if (value != "created" && value != "last_used")
      wrong("use created or last_used");
    else
      out.ttl_anchor = value == "created" ? TtlAnchor::kCreated : TtlAnchor::kLastUsed;
  } else if (name == "pinned") {
    if (value != "true" && value != "false")
      wrong("use true or false");
    else
      out.pinned = value == "true";
  } else if (name == "tier") {
    if (value != "dram" && value != "disk")
      wrong("use dram or disk");
    else
      out.tier = value;
  } else if (name == "cache_salt") {
    out.cache_salt = value;
  } else if (name == "strategy") {
    const auto v = parse_chunk_strategy(value);
    if (!v)
      wrong("use tokens, markdown, separator or none");
    else
      out.chunking.strategy = *v;
  } else if (name == "max_tokens" || name == "overlap_tokens") {
    const auto v = to_integer(value, name == "max_tokens" ? 1 : 0, 1 << 24);
    if (!v.ok())
      wrong(v.status().message());
    else
      (name == "max_tokens" ? out.chunking.max_tokens
                            : out.chunking.overlap_tokens) = static_cast<std::int32_t>(*v);
  } else if (name == "separator") {
    out.chunking.separator = value;
  } else {
    return false;
  }
  return true;
}

std::optional<ReadError> NdjsonReader::line(std::string_view text) {
  ++line_number_;
  if (text.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
  const std::string path = "documents[" + std::to_string(documents_.size()) + "]";
  if (documents_.size() >= max_documents_)
    return ReadError{"invalid_value",
                     "documents has more than the " + std::to_string(max_documents_) +
                         " items that are taken in one call",
                     "documents"};
  auto value = parse_json(text);
  if (!value.ok())
    return ReadError{
        "invalid_json",
        "line " + std::to_string(line_number_) + " of the body: " + value.status().message(), path};
  DocumentInput input;
  if (auto e = read_document(*value, path, input)) return e;
  documents_.push_back(std::move(input));
  return std::nullopt;
}

std::optional<ReadError> NdjsonReader::feed(std::string_view piece) {
  for (;;) {
    const auto newline = piece.find('\n');
    if (newline == std::string_view::npos) {
      rest_.append(piece);
      return std::nullopt;
    }
    std::optional<ReadError> error;
    if (rest_.empty()) {
      error = line(piece.substr(0, newline));
    } else {
      rest_.append(piece.substr(0, newline));
      error = line(rest_);
      rest_.clear();
    }
    if (error) return error;
    piece.remove_prefix(newline + 1);
  }
}

std::optional<ReadError> NdjsonReader::finish() {
  if (rest_.empty()) return std::nullopt;
  const std::string last = std::move(rest_);
  rest_.clear();
  return line(last);
}

std::optional<ReadError> read_multipart(std::string_view body, const std::string& boundary,
                                        std::size_t max_documents, DocumentBatch& out) {
  const auto wrong = [](std::string message, std::string param = {}) {
    return ReadError{"invalid_value", std::move(message), std::move(param)};
  };
  if (boundary.empty() || boundary.size() > 70)
    return wrong("Content-Type lacks its boundary", "Content-Type");
  const std::string mark = "--" + boundary;
  auto at = body.find(mark);
  if (at == std::string_view::npos) return wrong("the multipart body does not hold its boundary");
  DocumentInput form;  // members of a single document given as fields
  bool have_form = false;
  for (;;) {
    at += mark.size();
    if (body.substr(at, 2) == "--") break;
    const auto head_end = body.find("\r\n\r\n", at);
    if (head_end == std::string_view::npos)
      return wrong("a part of the multipart body has no end of its headers");
    const auto next = body.find("\r\n" + mark, head_end + 2);
    if (next == std::string_view::npos)
      return wrong("a part of the multipart body is not closed by the boundary");
    const std::string_view head = body.substr(at, head_end - at);
    const auto content_begin = head_end + 4;
    const std::string content(next >= content_begin
                                  ? body.substr(content_begin, next - content_begin)
                                  : std::string_view());
    std::string disposition;
    for (std::size_t i = 0; i < head.size();) {
      const auto end = std::min(head.find("\r\n", i), head.size());
      const auto text = head.substr(i, end - i);
      if (text.size() > 20 && iequals(text.substr(0, 20), "content-disposition:"))
        disposition = text.substr(20);
      i = end + 2;
    }
    const auto name = header_parameter(disposition, "name"),
               file = header_parameter(disposition, "filename");
    if (!name) return wrong("a part of the multipart body has no name");
    std::optional<ReadError> error;
    if (file) {
      if (out.documents.size() >= max_documents)
        return wrong("documents has more than the " + std::to_string(max_documents) +
                         " items that are taken in one call",
                     "documents");
      DocumentInput input;
      input.title = *file;
      input.text = content;
      json::object metadata;
      metadata["filename"] = *file;
      input.metadata_json = json::serialize(metadata);
      out.documents.push_back(std::move(input));
    } else if (*name == "id") {
      form.id = content;
      have_form = true;
    } else if (*name == "title") {
      form.title = content;
      have_form = true;
    } else if (*name == "metadata") {
      form.metadata_json = content;
      have_form = true;
    } else if (*name == "text") {
      DocumentInput input;
      input.text = content;
      out.documents.push_back(std::move(input));
    } else if (!read_option(*name, content, out.options, error)) {
      return ReadError{"unknown_field", "unknown form field '" + name->substr(0, 128) + "'",
                       name->substr(0, 128)};
    }
    if (error) return error;
    at = next + 2;
  }
  if (out.documents.empty()) return wrong("the form has no file and no 'text' field", "documents");
  if (have_form && out.documents.size() != 1)
    return wrong("id, title and metadata belong to one document; send one file with them", "id");
  if (have_form) {
    auto& d = out.documents[0];
    if (form.id) d.id = form.id;
    if (!form.title.empty()) d.title = form.title;
    if (!form.metadata_json.empty()) d.metadata_json = form.metadata_json;
  }
  return std::nullopt;
}

std::optional<ReadError> read_patch(const json::value& body, DocumentPatch& out) {
  ObjectReader r(body, "");
  if (!r.ok()) return r.error();
  const auto& o = body.as_object();
  if (o.contains("title")) {
    std::string title;
    r.string("title", title, 64 << 10);
    out.title = title;
  }
  (void)r.raw("title");
  if (const auto* metadata = r.object("metadata")) out.metadata_json = json::serialize(*metadata);
  if (o.contains("ttl_seconds")) {
    std::int64_t ttl = 0;
    r.integer("ttl_seconds", ttl, 1, kMaxTtl);
    out.ttl_seconds = ttl ? std::optional<std::uint64_t>(static_cast<std::uint64_t>(ttl))
                          : std::nullopt;
  }
  (void)r.raw("ttl_seconds");
  if (r.has("ttl_anchor")) {
    std::string anchor = "created";
    r.one_of("ttl_anchor", anchor, {"created", "last_used"});
    out.ttl_anchor = anchor == "created" ? TtlAnchor::kCreated : TtlAnchor::kLastUsed;
  }
  if (o.contains("expires_at")) {
    std::string text;
    r.string("expires_at", text, 64);
    if (text.empty()) {
      out.expires_at_ms = std::optional<std::int64_t>();
    } else if (const auto ms = parse_rfc3339(text); ms.ok()) {
      out.expires_at_ms = std::optional<std::int64_t>(*ms);
    } else {
      r.fail("expires_at", "expires_at: " + ms.status().message());
    }
  }
  (void)r.raw("expires_at");
  if (r.has("pinned")) {
    bool pinned = false;
    r.boolean("pinned", pinned);
    out.pinned = pinned;
  }
  r.finish();
  if (r.ok() && out.empty())
    r.fail("", "nothing to change; give title, metadata, ttl_seconds, expires_at or pinned");
  return r.error();
}

std::optional<ReadError> read_filter_member(std::string_view name, const std::string& value,
                                            DocumentFilter& out) {
  if (name == "status") {
    out.status = parse_document_status(value);
    if (!out.status)
      return ReadError{
          "invalid_value",
          "status is '" + value.substr(0, 64) +
              "'; use queued, tokenizing, prefilling, storing, ready, failed or deleting",
          "status"};
  } else if (name.starts_with("metadata.") && name.size() > 9) {
    out.metadata.emplace_back(name.substr(9), value);
  } else {
    return ReadError{
        "unknown_field",
        "unknown filter '" + std::string(name.substr(0, 128)) + "'; use status or metadata.<key>",
        std::string(name.substr(0, 128))};
  }
  return std::nullopt;
}

std::optional<ReadError> read_bulk_delete(const json::value& body, BulkDelete& out) {
  ObjectReader r(body, "");
  if (!r.ok()) return r.error();
  r.boolean("dry_run", out.dry_run);
  const bool has_ids = r.has("ids");
  if (has_ids) out.ids = r.strings("ids", 100'000);
  const auto* filter = r.object("filter");
  r.finish();
  if (!r.ok()) return r.error();
  if (has_ids == (filter != nullptr))
    return ReadError{"invalid_value", "give either ids or filter", "ids"};
  if (filter) {
    out.filter.emplace();
    for (const auto& member : *filter) {
      const auto& v = member.value();
      const std::string name(member.key().data(), member.key().size());
      if (v.is_object() && name == "metadata") {
        for (const auto& m : v.as_object()) {
          if (m.value().is_object() || m.value().is_array())
            return ReadError{"invalid_value", "filter.metadata values must be scalars",
                             "filter.metadata"};
          const std::string text = m.value().is_string() ? std::string(m.value().as_string())
                                                         : to_text(m.value());
          out.filter->metadata.emplace_back(std::string(m.key().data(), m.key().size()), text);
        }
        continue;
      }
      if (v.is_object() || v.is_array())
        return ReadError{"invalid_value", "filter." + name + " must be a scalar", "filter." + name};
      const std::string text = v.is_string() ? std::string(v.as_string()) : to_text(v);
      if (auto e = read_filter_member(name, text, *out.filter)) {
        e->param = "filter." + e->param;
        return e;
      }
    }
    if (out.filter->empty())
      return ReadError{"invalid_value", "filter is empty; to delete everything list the ids",
                       "filter"};
  }
  return std::nullopt;
}

json::object document_json(const DocumentInfo& d) {
  json::object o;
  o["id"] = d.id;
  o["object"] = "document";
  o["namespace"] = d.ns;
  o["title"] = or_null(d.title);
  o["metadata"] = metadata_value(d.metadata_json);
  o["content_hash"] = d.content_hash;
  o["version"] = d.version;
  o["bytes"] = d.bytes;
  o["tokens"] = d.tokens;
  o["chunks"] = d.num_chunks;
  o["status"] = document_status_name(d.status);
  o["error"] = error_value(d.error);
  o["pinned"] = d.pinned;
  o["hits"] = d.hits;
  json::object cache;
  cache["state"] = or_null(d.cache.state);
  cache["fingerprint"] = or_null(d.cache.fingerprint);
  cache["kv_dtype"] = or_null(d.cache.kv_dtype);
  cache["bytes"] = d.cache.bytes;
  cache["blocks"] = d.cache.blocks;
  cache["tiers"] = json::object{{"gpu", d.cache.gpu},
                                {"dram", d.cache.dram},
                                {"disk", d.cache.disk},
                                {"remote", d.cache.remote}};
  o["cache"] = std::move(cache);
  if (!d.job_id.empty() && d.progress) o["job_id"] = d.job_id;
  if (d.progress) o["progress"] = rounded(*d.progress);
  o["created_at"] = rfc3339_or_null(d.created_ms);
  o["updated_at"] = rfc3339_or_null(d.updated_ms);
  o["last_used_at"] = rfc3339_or_null(d.last_used_ms);
  o["expires_at"] = d.expires_at_ms ? json::value(rfc3339(*d.expires_at_ms)) : json::value(nullptr);
  return o;
}

json::object job_json(const JobSnapshot& job) {
  json::object o;
  o["id"] = job.id;
  o["object"] = "job";
  o["type"] = job_type_name(job.type);
  o["status"] = job_status_name(job.status);
  o["counts"] = counts_json(job.counts);
  json::object p;
  p["tokens_done"] = job.progress.tokens_done;
  p["tokens_total"] = job.progress.tokens_total;
  p["ratio"] = rounded(job.progress.ratio, 4);
  p["tokens_per_second"] = rounded(job.progress.tokens_per_second, 1);
  p["eta_ms"] = job.progress.eta_ms ? json::value(*job.progress.eta_ms) : json::value(nullptr);
  o["progress"] = std::move(p);
  o["created_at"] = rfc3339_or_null(job.created_ms);
  o["started_at"] = rfc3339_or_null(job.started_ms);
  o["finished_at"] = rfc3339_or_null(job.finished_ms);
  o["usage"] = json::object{{"tokens", job.usage.tokens},
                            {"cache_write_tokens", job.usage.cache_write_tokens},
                            {"deduplicated_tokens", job.usage.deduplicated_tokens}};
  o["results"] = results_json(job);
  o["error"] = error_value(job.error);
  return o;
}

json::object ingest_json(const JobSnapshot& job) {
  json::object o;
  o["object"] = "ingest";
  o["job_id"] = job.id;
  o["status"] = job_status_name(job.status);
  o["counts"] = counts_json(job.counts);
  o["results"] = results_json(job);
  o["usage"] = json::object{{"tokens", job.usage.tokens},
                            {"cache_write_tokens", job.usage.cache_write_tokens},
                            {"deduplicated_tokens", job.usage.deduplicated_tokens}};
  return o;
}

json::object chunk_json(const ChunkInfo& c) {
  json::object o;
  o["index"] = c.index;
  o["chars"] = json::array{c.char_begin, c.char_end};
  o["bytes"] = json::array{c.byte_begin, c.byte_end};
  o["tokens"] = c.tokens;
  o["blocks"] = c.blocks;
  o["block_tokens"] = c.block_tokens;
  o["tier"] = c.tier == Tier::kNone ? json::value(nullptr) : json::value(tier_name(c.tier));
  return o;
}

json::object block_json(const BlockInfo& b) {
  json::object o;
  o["index"] = b.index;
  o["block_id"] = b.block_id;
  o["chunk"] = b.chunk;
  o["tokens"] = json::array{b.token_begin, b.token_end};
  if (b.char_begin && b.char_end)
    o["chars"] = json::array{*b.char_begin, *b.char_end};
  else
    o["chars"] = nullptr;
  o["tier"] = b.tier == Tier::kNone ? json::value(nullptr) : json::value(tier_name(b.tier));
  return o;
}

json::object list_json(json::array data, bool has_more, std::string_view id_member) {
  json::object o;
  o["object"] = "list";
  const auto id = [&](const json::value& v) -> json::value {
    const auto* m = v.as_object().if_contains(
        json::string_view(id_member.data(), id_member.size()));
    return m ? *m : json::value(nullptr);
  };
  json::value first = data.empty() ? json::value(nullptr) : id(data.front());
  json::value last = data.empty() ? json::value(nullptr) : id(data.back());
  o["data"] = std::move(data);
  o["first_id"] = std::move(first);
  o["last_id"] = std::move(last);
  o["has_more"] = has_more;
  return o;
}

}  // namespace quire
