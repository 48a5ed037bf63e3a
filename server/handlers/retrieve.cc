#include "server/handlers/retrieve.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <string_view>
#include <unordered_set>

#include "base/index.h"
#include "base/log.h"
#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/reply/retrieve_reply.h"
#include "server/service/passage_reranker.h"

namespace quire {
namespace json = boost::json;

Problem search_problem(const Status& status, const std::string& path) {
  if (status.code() == Code::kInvalidArgument && status.field() == "rerank")
    return make_problem("unsupported_parameter", status.message(), path + "rerank");
  if (status.code() == Code::kInvalidArgument && status.field() == "scorer") {
    return make_problem("unsupported_parameter",
                        status.message() +
                            "; set retrieve.encoder to the folder of a text encoder, or "
                            "retrieve.embeddings = true, or use bm25",
                        path + "scorer");
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

Result<SearchedTexts> search_texts(Call& call, RetrieveRequest request,
                                   std::optional<std::int64_t> rerank) {
  const Services& s = call.services;
  if (rerank.value_or(0) > 0 && !s.reranker) {
    return Status::invalid("rerank",
                           "there is no cross-encoder to rank with; set retrieve.reranker to the "
                           "folder of one, or leave rerank out");
  }
  const std::size_t best = s.reranker ? to_size(rerank.value_or(s.config()->retrieve.rerank)) : 0;
  const std::size_t k = request.k;
  if (best > 0) request.k = std::max(k, best);
  const bool free = request.scorer == RetrieveScorer::kAuto;
  if (free) request.scorer = s.retrieval->default_scorer();
  auto found = s.retrieval->search(call.ns, request);
  const Code code = found.code();
  const bool busy = code == Code::kDeadlineExceeded || code == Code::kResourceExhausted ||
                    code == Code::kUnavailable || code == Code::kIo;
  if (free && busy && request.scorer != RetrieveScorer::kBm25) {
    request.scorer = RetrieveScorer::kBm25;
    found = s.retrieval->search(call.ns, request);
  }
  if (!found.ok()) return found.status();
  SearchedTexts out{.passages = std::move(*found), .scorer = request.scorer, .reranker = {}};
  if (best == 0) return out;
  std::erase_if(out.passages, [](const Passage& p) { return p.score <= 0; });
  QUIRE_RETURN_IF_ERROR(
      rerank_passages(*s.reranker, s.encoder_threads, request.query, out.passages));
  if (out.passages.size() > k) out.passages.resize(k);
  out.reranker = s.reranker->info().name;
  return out;
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
  // The others are copies of better ones at times, and those make room for what follows.
  request.k = std::max(most, std::min(to_size(kMostPassages), kChunksADocument * most));
  request.unit = whole ? RetrieveUnit::kDocument : RetrieveUnit::kChunk;
  request.scorer = retrieval.scorer;
  request.links = retrieval.links;
  const auto found = search_texts(call, request, retrieval.rerank);
  if (!found.ok()) return search_problem(found.status(), "retrieve.");
  std::unordered_set<std::string_view> texts;
  for (const Passage& p : found->passages) {
    if (p.score <= retrieval.min_score || texts.contains(p.text)) continue;
    const bool known = std::ranges::any_of(
        out.documents, [&](const ChosenDocument& d) { return d.id == p.document_id; });
    if (!known && by_documents && out.documents.size() == most) continue;
    if (!by_documents && texts.size() == most) break;
    texts.insert(p.text);
    if (!known) out.documents.push_back({p.document_id, p.score});
    if (!whole) out.chunks.push_back({p.document_id, p.chunk, p.content_hash, p.chunking});
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
  auto found = search_texts(call, request, 0);
  if (!found.ok()) return out;
  const Services& s = call.services;
  const std::size_t best = s.reranker ? std::min(to_size(s.config()->retrieve.rerank),
                                                 found->passages.size())
                                      : 0;
  // The others stay behind in their order, which serves as well where the reranker fails.
  const Status ranked = best == 0 ? Status()
                                  : rerank_passages(*s.reranker, s.encoder_threads, question,
                                                    std::span(found->passages).first(best));
  if (!ranked.ok()) log_warning("chunks are not ranked anew", {{"reason", ranked.to_string()}});
  std::unordered_set<std::string_view> texts;
  for (const Passage& p : found->passages)
    if (p.score > 0 && texts.insert(p.text).second)
      out.push_back({p.document_id, p.chunk, p.content_hash, p.chunking});
  return out;
}

namespace handlers {

void retrieve(std::shared_ptr<Call> call) {
  if (!check_parameters(*call, {})) return;
  const auto body = body_json(*call);
  if (!body) return;
  RetrieveBody read;
  if (failed(*call, read_retrieve(*body, read))) return;
  if (!call->services.retrieval) return call->fail(no_index());
  if (const auto missing = missing_ids(*call, read.request.document_ids); !missing.empty()) {
    return call->fail(missing_documents(call->ns, missing, "document_ids"));
  }
  auto found = search_texts(*call, read.request, read.rerank);
  if (!found.ok()) return call->fail(search_problem(found.status(), ""));
  // What has no word of the question, and no text with one names, is no result.
  std::erase_if(found->passages, [&](const Passage& p) { return p.score <= read.min_score; });
  std::optional<std::uint64_t> pending;
  if (found->scorer != RetrieveScorer::kBm25)
    pending = call->services.retrieval->stats().embeddings->pending;
  HttpResponse reply;
  reply.status = 200;
  reply.content_type = "application/json";
  reply.body = take_retrieve_text(found->passages,
                                  {found->passages, found->scorer, pending, found->reranker});
  call->reply(std::move(reply));
}

}  // namespace handlers
}  // namespace quire
