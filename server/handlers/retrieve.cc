#include "server/handlers/retrieve.h"

#include <algorithm>
#include <boost/json/array.hpp>

#include "base/index.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/reply/retrieve_reply.h"

namespace quire {
namespace json = boost::json;
namespace {

Problem search_problem(const Status& status, const std::string& scorer_path) {
  if (status.code() == Code::kInvalidArgument && status.field() == "scorer") {
    return make_problem("unsupported_parameter",
                        status.message() +
                            "; set retrieve.encoder to the folder of a text encoder, or "
                            "retrieve.embeddings = true, or use bm25",
                        scorer_path);
  }
  if (status.code() == Code::kResourceExhausted || status.code() == Code::kDeadlineExceeded ||
      status.code() == Code::kCancelled)
    return problem_of(status);
  if (status.code() == Code::kUnavailable) return make_problem("loading", status.message());
  return ingest_problem(status);
}

Problem no_index() {
  return make_problem("not_supported",
                      "retrieval is switched off (retrieve.enabled = false); name document_ids",
                      "document_ids");
}

}  // namespace

Result<std::vector<Passage>> search_texts(Call& call, RetrieveRequest& request) {
  Retrieval& retrieval = *call.services.retrieval;
  const bool free = request.scorer == RetrieveScorer::kAuto;
  if (free) request.scorer = retrieval.default_scorer();
  auto found = retrieval.search(call.ns, request);
  const Code code = found.code();
  const bool busy = code == Code::kDeadlineExceeded || code == Code::kResourceExhausted ||
                    code == Code::kUnavailable || code == Code::kIo;
  if (!free || !busy || request.scorer == RetrieveScorer::kBm25) return found;
  request.scorer = RetrieveScorer::kBm25;
  return retrieval.search(call.ns, request);
}

std::vector<std::string> missing_ids(Call& call, const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  for (const auto& id : ids) {
    if (call.services.ingest->documents().get(call.ns, id).code() == Code::kNotFound)
      out.push_back(id);
  }
  return out;
}

Problem missing_documents(const std::string& ns, const std::vector<std::string>& missing,
                          const std::string& param) {
  Problem problem = make_problem(
      "document_not_found",
      "there is no document '" + missing.front().substr(0, 256) + "' in the namespace '" + ns +
          "'" +
          (missing.size() > 1 ? ", and " + std::to_string(missing.size() - 1) + " more are missing"
                              : ""),
      param);
  json::array ids;
  for (const auto& id : missing) ids.emplace_back(id);
  problem.extra["document_ids"] = std::move(ids);
  return problem;
}

std::optional<Problem> choose_documents(Call& call, const std::string& question,
                                        const QueryRetrieval& retrieval,
                                        const std::vector<std::string>& among, FoundTexts& out) {
  // Chunks that are looked at for each document wanted: one document may have several good ones.
  constexpr std::size_t kChunksADocument = 4;
  if (!call.services.retrieval) return no_index();
  RetrieveRequest request;
  request.query = question;
  request.document_ids = among;
  request.metadata = retrieval.metadata;
  const std::size_t most = to_size(retrieval.k);
  const bool whole = retrieval.unit == QueryUnit::kDocument;
  const bool by_documents = retrieval.unit == QueryUnit::kAuto;
  request.k = by_documents ? std::min(to_size(kMostPassages), kChunksADocument * most) : most;
  request.unit = whole ? RetrieveUnit::kDocument : RetrieveUnit::kChunk;
  request.scorer = retrieval.scorer;
  const auto found = search_texts(call, request);
  if (!found.ok()) return search_problem(found.status(), "retrieve.scorer");
  for (const Passage& p : *found) {
    if (p.score <= retrieval.min_score) continue;
    const bool known = std::ranges::any_of(
        out.documents, [&](const ChosenDocument& d) { return d.id == p.document_id; });
    if (!known && by_documents && out.documents.size() == most) continue;
    if (!known) out.documents.push_back({p.document_id, p.score});
    if (!whole) out.chunks.push_back({p.document_id, p.chunk});
  }
  return std::nullopt;
}

std::vector<RankedChunk> rank_chunks(Call& call, const std::string& question,
                                     const std::vector<std::string>& ids) {
  std::vector<RankedChunk> out;
  if (!call.services.retrieval || ids.empty() || question.empty()) return out;
  RetrieveRequest request;
  request.query = question;
  request.document_ids = ids;
  request.k = to_size(kMostPassages);
  const auto found = search_texts(call, request);
  if (!found.ok()) return out;
  for (const Passage& p : *found)
    if (p.score > 0) out.push_back({p.document_id, p.chunk});
  return out;
}

namespace handlers {

void retrieve(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  RetrieveRequest request;
  double min_score = 0;
  if (failed(*call, read_retrieve(*body, request, min_score))) return;
  if (!call->services.retrieval) return call->fail(no_index());
  if (const auto missing = missing_ids(*call, request.document_ids); !missing.empty()) {
    return call->fail(missing_documents(call->ns, missing, "document_ids"));
  }
  auto found = search_texts(*call, request);
  if (!found.ok()) return call->fail(search_problem(found.status(), "scorer"));
  // What has no word of the question is no result.
  std::erase_if(*found, [&](const Passage& p) { return p.score <= min_score; });
  std::optional<std::uint64_t> pending;
  if (request.scorer != RetrieveScorer::kBm25)
    pending = call->services.retrieval->stats().embeddings->pending;
  call->reply_json(200, retrieve_reply().json({*found, request.scorer, pending}));
}

}  // namespace handlers
}  // namespace quire
