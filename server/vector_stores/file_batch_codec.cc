#include "server/vector_stores/file_batch_codec.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <unordered_map>
#include <utility>

#include "base/json_parse.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::array<std::string_view, 4> kStates = {"in_progress", "completed", "failed",
                                                     "cancelled"};
constexpr std::size_t kMostIdBytes = 256;

json::value chunking_value(const std::optional<StaticChunking>& c) {
  if (!c) return nullptr;
  return {{"max_tokens", c->max_tokens}, {"overlap_tokens", c->overlap_tokens}};
}

void read_saved_chunking(JsonReader& r, std::optional<StaticChunking>& out) {
  const json::object* given = r.object("chunking");
  if (!given) return;
  JsonReader inner(*given, r.path_of("chunking"));
  std::int64_t max = 0, overlap = 0;
  inner.integer("max_tokens", max, 1, INT32_MAX, JsonNeed::kRequired);
  inner.integer("overlap_tokens", overlap, 0, INT32_MAX, JsonNeed::kRequired);
  r.adopt(inner.error());
  out = {static_cast<std::int32_t>(max), static_cast<std::int32_t>(overlap)};
}

/// Refuses a file that stands in the list twice, because it has one state.
void refuse_repeated(JsonReader& r, std::string_view member, const std::vector<BatchFile>& files) {
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t i = 0; i < files.size() && r.ok(); ++i) {
    const auto [it, fresh] = seen.emplace(files[i].id, i);
    if (!fresh)
      r.fail(member, std::string(member) + "[" + std::to_string(i) + "] is that of " +
                         std::string(member) + "[" + std::to_string(it->second) +
                         "], too; name each file once");
  }
}

}  // namespace

std::string_view batch_file_state_name(BatchFileState state) {
  return kStates[static_cast<std::size_t>(state)];
}

std::optional<BatchFileState> parse_batch_file_state(std::string_view name) {
  const auto it = std::ranges::find(kStates, name);
  if (it == kStates.end()) return std::nullopt;
  return static_cast<BatchFileState>(it - kStates.begin());
}

std::size_t FileBatch::count(BatchFileState state) const {
  return static_cast<std::size_t>(std::ranges::count(files, state, &BatchFile::state));
}

std::optional<JsonError> read_file_batch(const json::value& body, FileBatch& out) {
  JsonReader r(body, "");
  read_attributes(r, out.attributes);
  read_chunking(r, out.chunking);
  if (r.has("file_ids") == r.has("files"))
    r.fail("file_ids", r.has("files") ? "file_ids and files exclude each other; give one of them"
                                      : "file_ids is missing; name the files to attach");
  if (r.has("file_ids")) {
    for (std::string& id : r.strings("file_ids", kMostBatchFiles))
      out.files.push_back({.id = std::move(id)});
    if (r.ok() && out.files.empty()) r.fail("file_ids", "file_ids has no file");
    refuse_repeated(r, "file_ids", out.files);
  } else if (const json::array* files = r.array("files", 1, kMostBatchFiles)) {
    for (const std::string_view shared : {"attributes", "chunking_strategy"})
      if (r.has(shared))
        r.fail(shared, std::string(shared) + " goes with file_ids; give each of the files its own");
    for (std::size_t i = 0; i < files->size() && r.ok(); ++i) {
      JsonReader item((*files)[i], "files[" + std::to_string(i) + "]");
      BatchFile& file = out.files.emplace_back();
      item.string("file_id", file.id, kMostIdBytes, JsonNeed::kRequired);
      read_attributes(item, file.attributes);
      read_chunking(item, file.chunking);
      item.finish();
      r.adopt(item.error());
    }
    refuse_repeated(r, "files", out.files);
  }
  r.finish();
  return r.error();
}

std::string file_batch_text(const FileBatch& batch) {
  json::array files;
  for (const BatchFile& f : batch.files) {
    json::object file{{"id", f.id}, {"state", batch_file_state_name(f.state)}};
    if (!f.attributes.empty()) file["attributes"] = f.attributes;
    if (f.chunking) file["chunking"] = chunking_value(f.chunking);
    if (f.state == BatchFileState::kFailed) {
      file["code"] = f.error_code;
      file["message"] = f.error_message;
    }
    files.push_back(std::move(file));
  }
  return to_text(json::object{{"version", 1},
                              {"id", batch.id},
                              {"store", batch.store_id},
                              {"created_ms", batch.created_ms},
                              {"cancelled", batch.cancelled},
                              {"attributes", batch.attributes},
                              {"chunking", chunking_value(batch.chunking)},
                              {"files", std::move(files)}});
}

Result<FileBatch> read_file_batch_record(std::string_view text) {
  const auto damaged = [](const std::string& why) {
    return Status::corruption("the record of a file batch is damaged: " + why);
  };
  const auto value = parse_json(text, kOutsideJson);
  if (!value.ok()) return damaged(value.status().message());
  FileBatch out;
  JsonReader r(*value, "");
  std::int64_t version = 0;
  r.integer("version", version, 1, 1, JsonNeed::kRequired);
  r.string("id", out.id, SIZE_MAX, JsonNeed::kRequired);
  r.string("store", out.store_id, SIZE_MAX, JsonNeed::kRequired);
  r.integer("created_ms", out.created_ms, 0, INT64_MAX, JsonNeed::kRequired);
  r.boolean("cancelled", out.cancelled, JsonNeed::kRequired);
  if (const json::object* attributes = r.object("attributes")) out.attributes = *attributes;
  read_saved_chunking(r, out.chunking);
  const json::array* files = r.array("files", 0, SIZE_MAX, JsonNeed::kRequired);
  for (std::size_t i = 0; files && i < files->size() && r.ok(); ++i) {
    JsonReader item((*files)[i], "files[" + std::to_string(i) + "]");
    BatchFile f;
    std::string state;
    item.string("id", f.id, SIZE_MAX, JsonNeed::kRequired);
    item.string("state", state, SIZE_MAX, JsonNeed::kRequired);
    if (const json::object* attributes = item.object("attributes")) f.attributes = *attributes;
    read_saved_chunking(item, f.chunking);
    item.string("code", f.error_code);
    item.string("message", f.error_message);
    const auto known = parse_batch_file_state(state);
    if (item.ok() && !known) item.fail("state", item.path_of("state") + " is unknown");
    r.adopt(item.error());
    f.state = known.value_or(BatchFileState::kFailed);
    out.files.push_back(std::move(f));
  }
  if (!r.ok()) return damaged(r.error()->message);
  return out;
}

std::string unfinished_batches_text(const std::vector<UnfinishedBatch>& batches) {
  json::array list;
  for (const UnfinishedBatch& b : batches)
    list.push_back(json::object{{"namespace", b.ns}, {"id", b.id}});
  return to_text(json::object{{"version", 1}, {"batches", std::move(list)}});
}

Result<std::vector<UnfinishedBatch>> read_unfinished_batches(std::string_view text) {
  const auto damaged = [](const std::string& why) {
    return Status::corruption("the record of unfinished file batches is damaged: " + why);
  };
  const auto value = parse_json(text, kOutsideJson);
  if (!value.ok()) return damaged(value.status().message());
  std::vector<UnfinishedBatch> out;
  JsonReader r(*value, "");
  std::int64_t version = 0;
  r.integer("version", version, 1, 1, JsonNeed::kRequired);
  const json::array* list = r.array("batches", 0, SIZE_MAX, JsonNeed::kRequired);
  for (std::size_t i = 0; list && i < list->size() && r.ok(); ++i) {
    JsonReader item((*list)[i], "batches[" + std::to_string(i) + "]");
    UnfinishedBatch b;
    item.string("namespace", b.ns, SIZE_MAX, JsonNeed::kRequired);
    item.string("id", b.id, SIZE_MAX, JsonNeed::kRequired);
    r.adopt(item.error());
    out.push_back(std::move(b));
  }
  if (!r.ok()) return damaged(r.error()->message);
  return out;
}

}  // namespace quire
