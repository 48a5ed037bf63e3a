#include "server/json/vector_store_codec.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>

#include "base/json_parse.h"
#include "server/json/document_upload.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::size_t kMostAttributes = 16, kMostKeyBytes = 64, kMostValueBytes = 512,
                      kMostNameBytes = 256, kMostFilters = 32, kMostFileIds = 500, kMostQueries = 8,
                      kMostQueryBytes = 64 << 10;
constexpr int kMostFilterLevels = 4;
constexpr std::array<std::string_view, 3> kReserved = {kVectorStoresMember, "filename", "purpose"};

bool is_reserved(std::string_view key) {
  return std::ranges::find(kReserved, key) != kReserved.end();
}

std::string text_of(const json::value& v) {
  return v.is_string() ? std::string(v.get_string()) : json::serialize(v);
}

/// Reads `metadata` or `attributes`: up to 16 scalars with short names.
void read_scalars(JsonReader& r, std::string_view member, bool numbers, json::object& out) {
  const json::object* given = r.object(member);
  if (!given) return;
  if (given->size() > kMostAttributes)
    return r.fail(member, r.path_of(member) + " has " + std::to_string(given->size()) +
                              " members; at most 16 are taken");
  for (const auto& [key, value] : *given) {
    const std::string path = r.path_of(member) + "." + std::string(key).substr(0, kMostKeyBytes);
    if (key.empty() || key.size() > kMostKeyBytes)
      return r.fail(member, path + ": a name has 1 to 64 bytes");
    if (numbers && is_reserved(key))
      return r.fail(member, path + " is a name that files keep for themselves; use another");
    const bool scalar = value.is_string() || (numbers && (value.is_number() || value.is_bool()));
    if (!scalar)
      return r.fail(member, path + (numbers ? " must be a string, a number or a boolean"
                                            : " must be a string"));
    if (value.is_string() && value.get_string().size() > kMostValueBytes)
      return r.fail(member, path + " has more than 512 bytes");
    out[key] = value;
  }
}

void refuse_expiry(JsonReader& r) {
  if (r.has("expires_after"))
    r.fail("expires_after",
           "expires_after of a vector store is not supported; give it to its files instead",
           "unsupported_parameter");
}

void read_filter(const json::value& value, const std::string& path, int level, JsonReader& report,
                 MetadataFilter& out) {
  JsonReader r(value, path);
  std::string type;
  r.one_of("type", type, {"eq", "ne", "gt", "gte", "lt", "lte", "in", "nin", "and", "or"});
  if (r.ok() && type.empty()) r.fail("type", r.path_of("type") + " is missing");
  if (type == "and" || type == "or") {
    const json::array* parts = r.array("filters", 1, kMostFilters, JsonNeed::kRequired);
    if (parts && level >= kMostFilterLevels)
      r.fail("filters", r.path_of("filters") + " lie more than 4 levels deep");
    MetadataFilter joined;
    bool plain_parts = true;  // each is one condition, not several that must all hold
    for (std::size_t i = 0; parts && r.ok() && i < parts->size(); ++i) {
      const std::size_t before = joined.size();
      read_filter((*parts)[i], r.path_of("filters") + "[" + std::to_string(i) + "]", level + 1, r,
                  joined);
      plain_parts = plain_parts && joined.size() == before + 1;
    }
    if (type == "or" && r.ok()) {
      // Conditions are joined by "and", within which one member may have one of several values.
      MetadataCondition any;
      any.key = joined.front().key;
      for (const MetadataCondition& c : joined) {
        MetadataCondition plain;
        plain.key = any.key;
        plain.any_of = c.any_of;
        plain_parts = plain_parts && !c.any_of.empty() && c == plain;
        any.any_of.insert(any.any_of.end(), c.any_of.begin(), c.any_of.end());
      }
      if (!plain_parts)
        r.fail("type",
               r.path_of("type") +
                   " 'or' joins only 'eq' and 'in' of one key; search once for each alternative",
               "unsupported_parameter");
      joined.assign(1, any);
    }
    out.insert(out.end(), joined.begin(), joined.end());
  } else if (r.ok()) {
    MetadataCondition c;
    r.string("key", c.key, kMostKeyBytes, JsonNeed::kRequired);
    const bool bound = type.starts_with('g') || type.starts_with('l');
    const bool many = type == "in" || type == "nin";
    std::vector<std::string> values;
    if (many) {
      const json::array* list = r.array("value", 1, 256, JsonNeed::kRequired);
      for (std::size_t i = 0; list && i < list->size(); ++i) {
        if ((*list)[i].is_structured() || (*list)[i].is_null())
          r.fail("value", r.path_of("value") + " must hold strings, numbers or booleans");
        values.push_back(text_of((*list)[i]));
      }
    } else if (const json::value* one = r.raw("value");
               one && !one->is_structured() && !(bound && one->is_bool())) {
      values.push_back(text_of(*one));
      c.number_bounds = bound && one->is_number();
    } else {
      r.fail("value", r.path_of("value") + (bound ? " must be a string or a number"
                                                  : " must be a string, a number or a boolean"));
    }
    if (!r.ok()) return report.adopt(r.error());
    if (type == "gt") c.above = values.front();
    if (type == "gte") c.at_least = values.front();
    if (type == "lt") c.below = values.front();
    if (type == "lte") c.at_most = values.front();
    if (type == "eq" || type == "in")
      c.any_of = std::move(values);
    else if (type == "ne" || type == "nin")
      c.none_of = std::move(values);
    out.push_back(std::move(c));
  }
  r.finish();
  report.adopt(r.error());
}

}  // namespace

void read_attributes(JsonReader& r, json::object& out) { read_scalars(r, "attributes", true, out); }

void read_chunking(JsonReader& r, std::optional<StaticChunking>& out) {
  const json::object* given = r.object("chunking_strategy");
  if (!given) return;
  JsonReader inner(*given, r.path_of("chunking_strategy"));
  std::string type;
  inner.string("type", type, 64, JsonNeed::kRequired);
  if (inner.ok() && type != "auto" && type != "static")
    inner.fail("type", inner.path_of("type") + " is '" + type + "'; use auto or static",
               "unsupported_parameter");
  const JsonNeed need = type == "static" ? JsonNeed::kRequired : JsonNeed::kOptional;
  if (const json::object* sizes = inner.object("static", need)) {
    if (type == "auto") inner.fail("static", inner.path_of("static") + " goes with type static");
    JsonReader size(*sizes, inner.path_of("static"));
    std::int64_t max = 0, overlap = 0;
    size.integer("max_chunk_size_tokens", max, 100, 4096, JsonNeed::kRequired);
    size.integer("chunk_overlap_tokens", overlap, 0, 2048, JsonNeed::kRequired);
    if (size.ok() && overlap > max / 2)
      size.fail("chunk_overlap_tokens", size.path_of("chunk_overlap_tokens") + " is " +
                                            std::to_string(overlap) +
                                            "; it must be at most half of max_chunk_size_tokens (" +
                                            std::to_string(max) + ")");
    size.finish();
    inner.adopt(size.error());
    out = {static_cast<std::int32_t>(max), static_cast<std::int32_t>(overlap)};
  }
  inner.finish();
  r.adopt(inner.error());
}

std::string vector_stores_text(const std::vector<VectorStore>& stores) {
  json::array list;
  for (const VectorStore& s : stores)
    list.push_back(json::object{{"id", s.id},
                                {"name", s.name},
                                {"description", s.description},
                                {"metadata", s.metadata},
                                {"created_ms", s.created_ms},
                                {"batches", json::array(s.batches.begin(), s.batches.end())}});
  return to_text(json::object{{"version", 2}, {"stores", std::move(list)}});
}

Result<std::vector<VectorStore>> read_vector_stores(std::string_view text) {
  const auto damaged = [](const std::string& why) {
    return Status::corruption("the record of vector stores is damaged: " + why);
  };
  const auto value = parse_json(text, kOutsideJson);
  if (!value.ok()) return damaged(value.status().message());
  std::vector<VectorStore> out;
  JsonReader r(*value, "");
  std::int64_t version = 0;
  r.integer("version", version, 1, 2, JsonNeed::kRequired);
  const json::array* list = r.array("stores", 0, SIZE_MAX, JsonNeed::kRequired);
  for (std::size_t i = 0; list && i < list->size(); ++i) {
    JsonReader item((*list)[i], "stores[" + std::to_string(i) + "]");
    VectorStore s;
    item.string("id", s.id, SIZE_MAX, JsonNeed::kRequired);
    item.string("name", s.name);
    item.string("description", s.description);
    if (const json::object* metadata = item.object("metadata")) s.metadata = *metadata;
    item.integer("created_ms", s.created_ms, 0, INT64_MAX, JsonNeed::kRequired);
    if (version > 1) s.batches = item.strings("batches", SIZE_MAX, JsonNeed::kRequired);
    r.adopt(item.error());
    out.push_back(std::move(s));
  }
  if (!r.ok()) return damaged(r.error()->message);
  return out;
}

bool is_file_purpose(std::string_view purpose) {
  return purpose == "assistants" || purpose == "user_data";
}

std::optional<JsonError> read_file_form(std::string_view body, const std::string& boundary,
                                        const std::string& id, DocumentBatch& out) {
  std::string purpose, anchor;
  std::optional<std::uint64_t> seconds;
  out.options.in_batch = false;
  auto error = read_form(body, boundary, [&](const FormPart& part) -> std::optional<JsonError> {
    const auto wrong = [&](const std::string& message, const char* code = "invalid_value") {
      return JsonError{code, message, part.name.substr(0, 128)};
    };
    const std::string text(part.content.substr(0, 128));
    if (part.name == "file") {
      if (!part.file || part.file->empty()) return wrong("file has no file name");
      if (!out.documents.empty()) return wrong("file is there twice; send one file a request");
      out.files.push_back({0, *part.file});
      out.documents.emplace_back();
      out.documents[0].id = id;
      out.documents[0].text = std::string(part.content);
    } else if (part.name == "purpose") {
      if (!is_file_purpose(text))
        return wrong("purpose is '" + text + "'; use assistants or user_data",
                     "unsupported_parameter");
      purpose = text;
    } else if (part.name == "expires_after[anchor]") {
      if (text != "created_at")
        return wrong("expires_after[anchor] is '" + text + "'; use created_at");
      anchor = text;
    } else if (part.name == "expires_after[seconds]") {
      std::uint64_t n = 0;
      const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
      if (ec != std::errc() || end != text.data() + text.size() || n < 3600 || n > 2592000)
        return wrong("expires_after[seconds] is '" + text +
                     "'; it must be between 3600 and 2592000");
      seconds = n;
    } else {
      return wrong("unknown form field '" + part.name.substr(0, 128) + "'", "unknown_field");
    }
    return std::nullopt;
  });
  if (error) return error;
  if (out.documents.empty()) return JsonError{"invalid_value", "the form has no file", "file"};
  if (purpose.empty())
    return JsonError{"invalid_value", "purpose is missing; use assistants or user_data", "purpose"};
  if (anchor.empty() == seconds.has_value())
    return JsonError{"invalid_value", "expires_after needs anchor and seconds", "expires_after"};
  out.options.ttl_seconds = seconds;
  out.documents[0].metadata_json = to_text(
      json::object{{"filename", out.files[0].name}, {"purpose", purpose}});
  return std::nullopt;
}

std::optional<JsonError> read_vector_store(const json::value& body, VectorStoreChange change,
                                           VectorStoreBody& out) {
  JsonReader r(body, "");
  if (r.has("name")) r.string("name", out.name.emplace(), kMostNameBytes);
  if (r.has("metadata")) read_scalars(r, "metadata", false, out.metadata.emplace());
  refuse_expiry(r);
  if (change == VectorStoreChange::kCreate) {
    if (r.has("description")) r.string("description", out.description.emplace(), kMostValueBytes);
    read_chunking(r, out.chunking);
    out.file_ids = r.strings("file_ids", kMostFileIds);
    if (out.chunking && out.file_ids.empty())
      r.fail("chunking_strategy",
             "chunking_strategy cuts the files of file_ids, and there are none; give it when files "
             "are attached");
  }
  r.finish();
  return r.error();
}

std::optional<JsonError> read_vector_store_file(const json::value& body, VectorStoreChange change,
                                                VectorStoreFileBody& out) {
  JsonReader r(body, "");
  read_attributes(r, out.attributes);
  if (change == VectorStoreChange::kCreate) {
    r.string("file_id", out.file_id, 256, JsonNeed::kRequired);
    read_chunking(r, out.chunking);
  }
  r.finish();
  return r.error();
}

std::optional<JsonError> read_vector_store_search(const json::value& body, VectorStoreSearch& out) {
  JsonReader r(body, "");
  if (const json::value* query = r.raw("query"); query && query->is_array()) {
    out.queries = r.strings("query", kMostQueries);
  } else {
    out.queries.emplace_back();
    r.string("query", out.queries.back(), kMostQueryBytes, JsonNeed::kRequired);
  }
  for (const std::string& q : out.queries)
    if (r.ok() && (q.empty() || q.size() > kMostQueryBytes))
      r.fail("query", "query has " + std::to_string(q.size()) + " bytes; it must have 1 to 65536");
  if (r.ok() && out.queries.empty()) r.fail("query", "query has no text");
  r.integer("max_num_results", out.most, 1, 50);
  read_openai_filter(r, "filters", out.filter);
  bool rewrite = false;
  r.boolean("rewrite_query", rewrite);
  if (rewrite)
    r.fail("rewrite_query", "rewrite_query is not supported; the query is searched for as it is",
           "unsupported_parameter");
  if (const json::object* ranking = r.object("ranking_options")) {
    JsonReader inner(*ranking, "ranking_options");
    std::string ranker;
    inner.one_of("ranker", ranker, {"auto", "none", "default-2024-11-15"});
    inner.number("score_threshold", out.score_threshold, 0);
    inner.finish();
    r.adopt(inner.error());
  }
  r.finish();
  return r.error();
}

void read_openai_filter(JsonReader& r, std::string_view member, MetadataFilter& out) {
  if (const json::value* given = r.raw(member)) read_filter(*given, r.path_of(member), 1, r, out);
}

json::object file_attributes(const json::object& metadata) {
  json::object out;
  for (const auto& [key, value] : metadata)
    if (!is_reserved(key) && (value.is_string() || value.is_number() || value.is_bool()))
      out[key] = value;
  return out;
}

}  // namespace quire
