#include "server/handlers/uploaded_files.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "base/json_parse.h"
#include "base/log.h"
#include "ingest/document/document_id.h"
#include "server/service/services.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Returns the problem of a file that cannot be read. The message begins with the file's name.
Problem file_problem(const Status& status) {
  const auto named = [&](const char* code) { return make_problem(code, status.message(), "file"); };
  switch (status.code()) {
    case Code::kNotFound:
      return named("empty_document");
    case Code::kUnimplemented:
      return named("unsupported_media_type");
    case Code::kResourceExhausted:
      return named("payload_too_large");
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:  // protected by a password
      return named("invalid_value");
    case Code::kInternal:  // the reader crashed, which is the file's doing
      log_warning("a reader crashed over an uploaded file", {{"reason", status.to_string()}});
      return named("invalid_value");
    default:
      log_error("an uploaded file could not be read", {{"reason", status.to_string()}});
      return problem_of(status);
  }
}

/// Returns the problem of an address that cannot be fetched.
Problem fetch_problem(const Status& status, const std::string& param) {
  switch (status.code()) {
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
      return make_problem("invalid_value", status.message(), param);
    case Code::kNotFound:
    case Code::kIo:
      return make_problem("fetch_failed", status.message(), param);
    case Code::kResourceExhausted:
      return make_problem("payload_too_large", status.message() + " (fetch.max_bytes)", param);
    default:
      return make_problem("fetch_failed", status.message() + "; try again", param);
  }
}

/// Returns the metadata of the reader and the file's name, under those that the caller gave.
std::string metadata_of(const ReadDocument& read, const std::string& file_name,
                        const std::string& source, const std::string& given) {
  json::object all;
  for (const auto& [key, value] : read.metadata) all[key] = value;
  all["filename"] = file_name;
  all["source"] = source;
  if (given.empty()) return json::serialize(all);
  const auto own = parse_json(given, kOutsideJson);
  if (!own.ok() || !own->is_object()) return given;  // ingest refuses it
  for (const auto& [key, value] : own->as_object()) all[key] = value;
  return json::serialize(all);
}

}  // namespace

std::vector<DocumentBatch> read_uploaded_files(const ReaderProcess& reader,
                                               const hub::FetchRules& rules, DocumentBatch batch,
                                               const WhyStop& why_stop,
                                               std::optional<Problem>& problem) {
  const std::vector<UploadedFile> files = std::move(batch.files);
  std::vector<DocumentBatch> out(2);  // cut by tokens or as the caller says; at headings
  for (DocumentBatch& part : out) part.options = batch.options;
  if (!batch.chosen_strategy) out[1].options.chunking.strategy = ChunkStrategy::kMarkdown;
  auto add = [place = std::size_t{0}](DocumentBatch& part, DocumentInput d) mutable {
    part.documents.push_back(std::move(d));
    part.places.push_back(place++);
  };
  auto file = files.begin();
  for (std::size_t i = 0; i < batch.documents.size(); ++i) {
    DocumentInput& input = batch.documents[i];
    if (file == files.end() || file->index != i) {
      add(out[0], std::move(input));
      continue;
    }
    problem = why_stop();
    if (problem) return {};
    ReaderRequest request;
    request.name = file->name;
    std::string source = file->name;
    if (!file->url.empty()) {
      auto fetched = hub::fetch_file(file->url, rules);
      if (!fetched.ok()) {
        const bool single = !batch.options.in_batch;
        problem = fetch_problem(
            fetched.status(),
            single ? "url" : "documents[" + std::to_string(file->index) + "].url");
        return {};
      }
      request.name = fetched->name;
      source = fetched->path;
      input.text = std::move(fetched->bytes);
    }
    auto read = reader.read_bytes(input.text.value_or(""), request);
    if (!read.ok()) {
      problem = file_problem(read.status());
      return {};
    }
    if (input.id && read->size() != 1) {
      problem = make_problem("invalid_value",
                             "the file '" + source + "' holds " + std::to_string(read->size()) +
                                 " documents, which cannot share an id; use POST without an id",
                             "id");
      return {};
    }
    for (ReadDocument& d : *read) {
      DocumentInput one;
      one.id = input.id ? *input.id
                        : document_id_of_path(d.part.empty() ? source : source + "/" + d.part);
      one.title = input.title.empty() ? std::move(d.title) : input.title;
      one.metadata_json = metadata_of(d, request.name, file->url.empty() ? source : file->url,
                                      input.metadata_json);
      one.text = std::move(d.text);
      one.marks = std::move(d.marks);
      const bool at_headings = d.markdown && !batch.chosen_strategy &&
                               batch.options.chunking.overlap_tokens == 0;
      add(out[at_headings], std::move(one));
    }
    ++file;
  }
  std::erase_if(out, [](const DocumentBatch& part) { return part.documents.empty(); });
  for (DocumentBatch& part : out)
    part.options.in_batch = out.size() > 1 || part.documents.size() != 1;
  return out;
}

}  // namespace quire
