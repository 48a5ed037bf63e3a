#include <algorithm>
#include <boost/json/array.hpp>
#include <optional>
#include <utility>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/files/files.h"
#include "server/handlers/handlers.h"
#include "server/handlers/retrieve.h"
#include "server/reply/list_reply.h"
#include "server/support/request_id.h"
#include "server/vector_stores/file_batch_codec.h"
#include "server/vector_stores/file_batches.h"

namespace quire {
namespace json = boost::json;
namespace {

using enum BatchFileState;

/// Read by OpenAI's clients, which otherwise ask once a second.
constexpr const char* kPollAfterMs = "250";

json::object batch_json(const FileBatch& b) {
  json::object counts;
  for (const BatchFileState state : {kInProgress, kCompleted, kFailed, kCancelled})
    counts[batch_file_state_name(state)] = b.count(state);
  counts["total"] = b.files.size();
  const char* status = !b.ended()                               ? "in_progress"
                       : b.cancelled && b.count(kCancelled) > 0 ? "cancelled"
                       : b.count(kFailed) == b.files.size()     ? "failed"
                                                                : "completed";
  return {{"id", b.id},
          {"object", "vector_store.files_batch"},
          {"created_at", b.created_ms / 1000},
          {"vector_store_id", b.store_id},
          {"status", status},
          {"file_counts", std::move(counts)}};
}

void reply_batch(Call& call, const FileBatch& b) {
  std::vector<std::pair<std::string, std::string>> headers;
  if (!b.ended()) headers.emplace_back("openai-poll-after-ms", kPollAfterMs);
  call.reply_json(200, batch_json(b), std::move(headers));
}

/// Fails the call for an error of the batch of the path.
void fail_batch(Call& call, const Status& status) {
  if (status.code() != Code::kNotFound) return call.fail(ingest_problem(status));
  call.fail(make_problem("file_batch_not_found",
                         "the vector store '" + call.path_param("id").substr(0, 256) +
                             "' has no file batch '" + call.path_param("batch").substr(0, 256) +
                             "'; it keeps the " + std::to_string(FileBatches::kMostOfAStore) +
                             " newest",
                         "batch_id"));
}

/// Returns the batch of the path; none: the call was failed.
std::optional<FileBatch> batch_of_path(Call& call) {
  const auto store = store_of_path(call);
  if (!store) return std::nullopt;
  auto batch = call.services.file_batches->get(call.ns, store->id, call.path_param("batch"));
  if (batch.ok()) return std::move(*batch);
  fail_batch(call, batch.status());
  return std::nullopt;
}

/// Returns a file of a batch: its document as it is now, with what the batch knows of it.
json::object batch_file_json(const Call& call, const FileBatch& batch, const BatchFile& f) {
  DocumentInfo d;
  d.id = f.id;
  d.ns = call.ns;
  d.created_ms = batch.created_ms;
  if (auto now = call.services.ingest->documents().get(call.ns, f.id); now.ok())
    d = std::move(*now);
  json::object out = file_of_store_json(call.services, d, batch.store_id);
  out["status"] = batch_file_state_name(f.state);
  out["last_error"] = nullptr;
  if (f.state == kFailed)
    out["last_error"] = json::object{{"code", f.error_code}, {"message", f.error_message}};
  return out;
}

/// Returns the place of the file that `name` names as the end of a page; none: the call was failed.
std::optional<std::size_t> cursor(Call& call, std::string_view name, const std::string& id,
                                  const std::vector<const BatchFile*>& files) {
  const auto it = std::ranges::find(files, id, &BatchFile::id);
  if (it != files.end()) return to_size(it - files.begin());
  call.fail(make_problem(
      "invalid_value",
      std::string(name) + " is '" + id.substr(0, 256) + "', which is no file of the batch",
      std::string(name)));
  return std::nullopt;
}

}  // namespace

namespace handlers {

void create_file_batch(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto parsed = body_json(*call);
  if (!parsed) return;
  FileBatch batch;
  if (failed(*call, read_file_batch(*parsed, batch))) return;
  std::vector<std::string> ids;
  for (const BatchFile& f : batch.files) ids.push_back(f.id);
  const bool own = parsed->as_object().contains("files");
  if (const auto missing = missing_ids(*call, ids); !missing.empty())
    return call->fail(missing_documents(call->ns, missing, own ? "files" : "file_ids"));
  batch.id = make_id("vsfb_");
  batch.store_id = store->id;
  batch.created_ms = unix_ms_now();
  if (const Status s = call->services.file_batches->begin(call->ns, batch); !s.ok()) {
    if (s.code() == Code::kResourceExhausted && s.field() == "file_batches")
      return call->fail(make_problem("overloaded", s.message()));
    return fail_store(*call, s, store->id);
  }
  call->add_log("documents", std::to_string(batch.files.size()));
  reply_batch(*call, batch);
}

void get_file_batch(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  if (const auto batch = batch_of_path(*call)) reply_batch(*call, *batch);
}

void cancel_file_batch(std::shared_ptr<Call> call) {
  const auto store = store_of_path(*call);
  if (!store) return;
  const auto batch = call->services.file_batches->cancel(call->ns, store->id,
                                                         call->path_param("batch"));
  if (!batch.ok()) return fail_batch(*call, batch.status());
  reply_batch(*call, *batch);
}

void list_file_batch_files(std::shared_ptr<Call> call) {
  const auto list = list_query(*call, {"filter", "before"});
  if (!list) return;
  std::optional<BatchFileState> only;
  if (const auto* filter = call->request().param("filter")) {
    only = parse_batch_file_state(*filter);
    if (!only)
      return call->fail(make_problem("invalid_value",
                                     "filter is '" + filter->substr(0, 64) +
                                         "'; use in_progress, completed, failed or cancelled",
                                     "filter"));
  }
  const auto batch = batch_of_path(*call);
  if (!batch) return;
  std::vector<const BatchFile*> files;
  for (const BatchFile& f : batch->files) files.push_back(&f);
  if (list->descending) std::ranges::reverse(files);
  std::size_t begin = 0, end = files.size();
  const std::string* before = call->request().param("before");
  if (!list->after.empty()) {
    const auto at = cursor(*call, "after", list->after, files);
    if (!at) return;
    begin = *at + 1;
  }
  if (before) {
    const auto at = cursor(*call, "before", *before, files);
    if (!at) return;
    end = std::max(*at, begin);
  }
  std::vector<const BatchFile*> found;
  for (std::size_t i = begin; i < end; ++i)
    if (!only || files[i]->state == *only) found.push_back(files[i]);
  const std::size_t limit = to_size(list->limit);
  const bool has_more = found.size() > limit;
  // The page before a file ends there.
  if (has_more && before && list->after.empty())
    found.erase(found.begin(), found.end() - list->limit);
  found.resize(std::min(found.size(), limit));
  json::array data;
  for (const BatchFile* f : found) data.push_back(batch_file_json(*call, *batch, *f));
  call->reply_json(200, list_json(std::move(data), has_more));
}

}  // namespace handlers
}  // namespace quire
