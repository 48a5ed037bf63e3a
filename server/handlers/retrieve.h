/// Finds documents, for POST /v1/retrieve and for queries that name none.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/handlers/chunk_choice.h"
#include "server/json/retrieve_codec.h"
#include "server/service/call.h"
#include "server/support/problem.h"

namespace quire {

struct ChosenDocument {
  std::string id;
  double score = 0;  ///< of its best chunk
};

/// What search found for a question, best first.
struct FoundTexts {
  std::vector<ChosenDocument> documents;
  std::vector<RankedChunk> chunks;  ///< of these documents; empty with QueryUnit::kDocument
};

/// Returns the problem of a search that failed. `path` stands before the members that it names.
Problem search_problem(const Status& status, const std::string& path);
/// Returns the problem of a service without an index.
Problem no_index();
/// Returns the ids that the namespace does not have. It may wait on disk.
std::vector<std::string> missing_ids(Call& call, const std::vector<std::string>& ids);
/// Returns the problem that the namespace lacks these documents, of which there is one at least.
Problem missing_documents(const std::string& ns, const std::vector<std::string>& missing,
                          const std::string& param);

/// Finds the best documents for a question, of all or of `among`; possibly none. With bm25, texts
/// without a word of the question are left out. Of equal texts the best one counts, so that copies
/// of a document do not crowd out others. It may wait on disk. A problem: there is no index
/// (yet).
std::optional<Problem> choose_documents(Call& call, const std::string& question,
                                        const QueryRetrieval& retrieval,
                                        const std::vector<std::string>& among, FoundTexts& out);

struct SearchedTexts {
  std::vector<Passage> passages;  ///< best first
  RetrieveScorer scorer = RetrieveScorer::kBm25;
  std::string reranker;  ///< name of the cross-encoder that ranked them anew; empty: none did
};
/// Searches the index of the call's namespace, which must be there. A request that names no scorer
/// takes the service's own, or BM25 where the question cannot be embedded now. The reranker, if
/// there is one, ranks the best `rerank` texts or request.k if that is more (none:
/// retrieve.rerank; 0: it does not). Errors: kInvalidArgument (field "scorer" or "rerank": the
/// service has none), those of Retrieval::search() and CrossEncoder::score().
Result<SearchedTexts> search_texts(Call& call, RetrieveRequest request,
                                   std::optional<std::int64_t> rerank);

/// Ranks all chunks of the documents `ids` for a question, at most kMostPassages of them, and equal
/// texts once. An error of the search, also where retrieval is switched off, gives none.
std::vector<RankedChunk> rank_chunks(Call& call, const std::string& question,
                                     const std::vector<std::string>& ids);

}  // namespace quire
