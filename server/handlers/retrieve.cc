#include "server/handlers/retrieve.h"

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
                        status.message() + "; set retrieve.embeddings = true, or use bm25",
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

/// Returns the named ids that the namespace does not have.
std::vector<std::string> missing_ids(Call& call, const std::vector<std::string>& ids) {
  std::vector<std::string> out;
  for (const auto& id : ids) {
    if (call.services.ingest->documents().get(call.ns, id).code() == Code::kNotFound)
      out.push_back(id);
  }
  return out;
}

}  // namespace

std::optional<Problem> choose_documents(Call& call, const std::string& question,
                                        const QueryRetrieval& retrieval,
                                        std::vector<ChosenDocument>& out) {
  if (!call.services.retrieval) return no_index();
  RetrieveRequest request;
  request.query = question;
  request.metadata = retrieval.metadata;
  request.k = to_size(retrieval.k);
  request.unit = RetrieveUnit::kDocument;
  request.scorer = retrieval.scorer;
  const auto found = call.services.retrieval->search(call.ns, request);
  if (!found.ok()) return search_problem(found.status(), "retrieve.scorer");
  for (const Passage& p : *found) {
    if (p.score > 0) out.push_back({p.document_id, p.score});
  }
  return std::nullopt;
}

namespace handlers {

void retrieve(std::shared_ptr<Call> call) {
  const auto body = body_json(*call);
  if (!body) return;
  RetrieveRequest request;
  if (failed(*call, read_retrieve(*body, request))) return;
  if (!call->services.retrieval) return call->fail(no_index());
  if (const auto missing = missing_ids(*call, request.document_ids); !missing.empty()) {
    Problem problem = make_problem(
        "document_not_found",
        "there is no document '" + missing.front().substr(0, 256) + "' in the namespace '" +
            call->ns + "'" +
            (missing.size() > 1
                 ? ", and " + std::to_string(missing.size() - 1) + " more are missing"
                 : ""),
        "document_ids");
    json::array ids;
    for (const auto& id : missing) ids.emplace_back(id);
    problem.extra["document_ids"] = std::move(ids);
    return call->fail(problem);
  }
  const auto found = call->services.retrieval->search(call->ns, request);
  if (!found.ok()) return call->fail(search_problem(found.status(), "scorer"));
  std::optional<std::uint64_t> pending;
  if (request.scorer != RetrieveScorer::kBm25)
    pending = call->services.retrieval->stats().embeddings->pending;
  call->reply_json(200, retrieve_reply().json({*found, request.scorer, pending}));
}

}  // namespace handlers
}  // namespace quire
