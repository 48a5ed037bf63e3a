#include "server/json/document_request.h"

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "cachestore/format/document.h"
#include "server/json/mark_codec.h"
#include "server/json/metadata_filter.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

/// A longer id refuses the call; one above kMaxIdBytes fails its document.
constexpr std::size_t kLongestReadId = 4096;
constexpr std::size_t kMaxUrlBytes = 8192;
constexpr std::int64_t kMaxTtl = 10'000'000'000;

void read_chunking(JsonReader& r, ChunkingOptions& out) {
  std::string strategy(chunk_strategy_name(out.strategy));
  std::int64_t max_tokens = out.max_tokens, overlap = out.overlap_tokens,
               context = out.context_tokens, related = out.related_tokens;
  r.one_of("strategy", strategy, {"tokens", "markdown", "separator", "none"});
  r.integer("max_tokens", max_tokens, 1, 1 << 24);
  r.integer("overlap_tokens", overlap, 0, 1 << 24);
  r.integer("context_tokens", context, 0, 1 << 24);
  r.integer("related_tokens", related, 0, kMaxRelatedTokens);
  if (r.has("lead_in")) {
    bool lead_in = false;
    r.boolean("lead_in", lead_in);
    out.lead_in = lead_in;
  }
  r.string("separator", out.separator, 64);
  out.strategy = parse_chunk_strategy(strategy).value_or(ChunkStrategy::kTokens);
  out.max_tokens = static_cast<std::int32_t>(max_tokens);
  out.overlap_tokens = static_cast<std::int32_t>(overlap);
  out.context_tokens = static_cast<std::int32_t>(context);
  out.related_tokens = static_cast<std::int32_t>(related);
}

/// Reads the options but those of chunking. Options that are not given keep their value.
void read_plain_options(JsonReader& r, BatchOptions& out) {
  std::string if_exists(if_exists_name(out.if_exists)), tier = out.tier;
  std::string anchor = out.ttl_anchor == TtlAnchor::kLastUsed ? "last_used" : "created";
  r.one_of("if_exists", if_exists, {"upsert", "skip", "error"});
  if (r.has("ttl_seconds")) {
    std::int64_t ttl = 1;
    r.integer("ttl_seconds", ttl, 1, kMaxTtl);
    out.ttl_seconds = static_cast<std::uint64_t>(ttl);
  }
  r.one_of("ttl_anchor", anchor, {"created", "last_used"});
  r.boolean("pinned", out.pinned);
  std::string kv(kv_policy_name(out.kv));
  r.one_of("kv", kv, {"eager", "lazy", "text_only"});
  out.kv = parse_kv_policy(kv).value_or(KvPolicy::kEager);
  r.one_of("tier", tier, {"dram", "disk"});
  r.string("cache_salt", out.cache_salt, 512);
  out.if_exists = parse_if_exists(if_exists).value_or(IfExists::kUpsert);
  out.ttl_anchor = anchor == "last_used" ? TtlAnchor::kLastUsed : TtlAnchor::kCreated;
  out.tier = tier;
}

void read_options(JsonReader& r, BatchOptions& out) {
  if (const auto* chunking = r.raw("chunking"); chunking && r.ok()) {
    JsonReader inner(*chunking, r.path_of("chunking"));
    read_chunking(inner, out.chunking);
    inner.finish();
    r.adopt(inner.error());
  }
  read_plain_options(r, out);
}

bool chooses_strategy(const json::value& body) {
  const auto* chunking = body.as_object().if_contains("chunking");
  return chunking && chunking->is_object() && chunking->as_object().contains("strategy");
}

/// An option that may be given as text, beside a body that is not JSON.
struct TextOption {
  enum class Type : std::uint8_t { kText, kInteger, kFlag };
  std::string_view name;
  Type type = Type::kText;
  bool chunking = false;
};
constexpr TextOption kTextOptions[] = {
    {"if_exists"},
    {"ttl_seconds", TextOption::Type::kInteger},
    {"ttl_anchor"},
    {"pinned", TextOption::Type::kFlag},
    {"kv"},
    {"tier"},
    {"cache_salt"},
    {"strategy", TextOption::Type::kText, true},
    {"max_tokens", TextOption::Type::kInteger, true},
    {"overlap_tokens", TextOption::Type::kInteger, true},
    {"context_tokens", TextOption::Type::kInteger, true},
    {"related_tokens", TextOption::Type::kInteger, true},
    {"lead_in", TextOption::Type::kFlag, true},
    {"separator", TextOption::Type::kText, true},
};

/// Returns the value that JSON would hold. Text that is none of its type stays text, which the
/// reader refuses.
json::value typed(TextOption::Type type, const std::string& text) {
  if (type == TextOption::Type::kFlag && (text == "true" || text == "false")) return text == "true";
  if (type == TextOption::Type::kInteger) {
    std::int64_t v = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
    if (error == std::errc() && end == text.data() + text.size()) return v;
  }
  return json::value(text);
}

/// `url` receives the member of that name; null: it is not taken here.
void read_members(JsonReader& r, DocumentInput& out, std::string* url) {
  if (r.has("id")) {
    std::string id;
    r.string("id", id);
    if (id.size() > kLongestReadId)
      r.fail("id", r.path_of("id") + " has " + std::to_string(id.size()) + " bytes; at most " +
                       std::to_string(kMaxIdBytes) + " are taken");
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
  const bool has_url = url && r.has("url");
  if (has_url) r.string("url", *url, kMaxUrlBytes);
  if (has_url && (out.text || out.chunks))
    r.fail("url", r.path_of("url") + " stands for the text; give one of url, text and chunks");
  if (has_url && r.has("marks"))
    r.fail("marks", r.path_of("marks") + " belongs to text; a file has its own");
  if (r.ok() && has_url && url->empty()) r.fail("url", r.path_of("url") + " is empty");
  if (!out.text && !out.chunks && !has_url)
    r.fail("text", r.path_of("text") + " is missing; give text or chunks");
  if (out.chunks && r.has("marks"))
    r.fail("marks", r.path_of("marks") + " belongs to text; chunks have none");
  if (r.ok() && out.text) read_marks(r, *out.text, out.marks);
}

}  // namespace

std::optional<JsonError> read_document(const json::value& value, const std::string& path,
                                       DocumentInput& out) {
  JsonReader r(value, path);
  if (r.ok()) read_members(r, out, nullptr);
  r.finish();
  return r.error();
}

std::optional<JsonError> read_batch(const json::value& body, std::size_t max_documents,
                                    DocumentBatch& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_options(r, out.options);
  out.chosen_strategy = chooses_strategy(body);
  if (!body.as_object().contains("documents")) {
    out.options.in_batch = false;
    out.documents.emplace_back();
    std::string url;
    read_members(r, out.documents.back(), &url);
    if (!url.empty()) out.files.push_back({0, "", url});
    (void)r.raw("documents");
    r.finish();
    return r.error();
  }
  const auto* list = r.array("documents", 1, max_documents);
  if (!list && r.ok()) r.fail("documents", "documents must be an array, not null");
  r.finish();
  if (!r.ok()) return r.error();
  out.documents.resize(list->size());
  for (std::size_t i = 0; i < list->size(); ++i) {
    JsonReader one((*list)[i], "documents[" + std::to_string(i) + "]");
    std::string url;
    if (one.ok()) read_members(one, out.documents[i], &url);
    one.finish();
    if (one.error()) return one.error();
    if (!url.empty()) out.files.push_back({i, "", std::move(url)});
  }
  return std::nullopt;
}

std::optional<JsonError> read_put(const json::value& body, const std::string& id,
                                  DocumentBatch& out) {
  out.options.in_batch = false;
  out.documents.resize(1);
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  read_options(r, out.options);
  out.chosen_strategy = chooses_strategy(body);
  std::string url;
  read_members(r, out.documents[0], &url);
  if (!url.empty()) out.files.push_back({0, "", std::move(url)});
  if (r.ok() && out.documents[0].id && *out.documents[0].id != id)
    r.fail("id", "id is not the one in the path; leave it out");
  out.documents[0].id = id;
  r.finish();
  return r.error();
}

bool read_option(std::string_view name, const std::string& value, BatchOptions& out,
                 std::optional<JsonError>& error) {
  for (const TextOption& option : kTextOptions) {
    if (option.name != name) continue;
    const json::value body = json::object{{name, typed(option.type, value)}};
    JsonReader r(body, "");
    if (option.chunking)
      read_chunking(r, out.chunking);
    else
      read_plain_options(r, out);
    error = r.error();
    return true;
  }
  return false;
}

std::optional<JsonError> read_patch(const json::value& body, DocumentPatch& out) {
  JsonReader r(body, "");
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

std::optional<JsonError> read_filter_member(std::string_view name, const std::string& value,
                                            DocumentFilter& out) {
  if (name == "status") {
    out.status = parse_document_status(value);
    if (!out.status)
      return JsonError{
          "invalid_value",
          "status is '" + value.substr(0, 64) +
              "'; use queued, tokenizing, prefilling, storing, ready, failed or deleting",
          "status"};
  } else if (name.starts_with("metadata.") && name.size() > 9) {
    return read_metadata_condition(name.substr(9), value, std::string(name.substr(0, 128)),
                                   out.metadata);
  } else {
    return JsonError{"unknown_field",
                     "unknown filter '" + std::string(name.substr(0, 128)) +
                         "'; use status, metadata.<key> or metadata.<key>[gte]",
                     std::string(name.substr(0, 128))};
  }
  return std::nullopt;
}

std::optional<JsonError> read_bulk_delete(const json::value& body, BulkDelete& out) {
  JsonReader r(body, "");
  if (!r.ok()) return r.error();
  r.boolean("dry_run", out.dry_run);
  const bool has_ids = r.has("ids");
  if (has_ids) out.ids = r.strings("ids", 100'000);
  const auto* filter = r.object("filter");
  r.finish();
  if (!r.ok()) return r.error();
  if (has_ids == (filter != nullptr))
    return JsonError{"invalid_value", "give either ids or filter", "ids"};
  if (filter) {
    out.filter.emplace();
    for (const auto& member : *filter) {
      const auto& v = member.value();
      const std::string name(member.key().data(), member.key().size());
      if (v.is_object() && name == "metadata") {
        JsonReader inner(*filter, "filter");
        read_metadata_filter(inner, "metadata", out.filter->metadata);
        if (inner.error()) return inner.error();
        continue;
      }
      if (v.is_object() || v.is_array())
        return JsonError{"invalid_value", "filter." + name + " must be a scalar", "filter." + name};
      const std::string text = v.is_string() ? std::string(v.as_string()) : to_text(v);
      if (auto e = read_filter_member(name, text, *out.filter)) {
        e->path = "filter." + e->path;
        return e;
      }
    }
    if (out.filter->empty())
      return JsonError{"invalid_value", "filter is empty; to delete everything list the ids",
                       "filter"};
  }
  return std::nullopt;
}

}  // namespace quire
