#include "server/handlers/chunk_choice.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

bool is_of(const RankedChunk& chunk, const QueryDocument& document) {
  return chunk.content_hash == document.content_hash && chunk.chunking == document.chunking;
}

/// Marks the contexts that stay, as long as there is room.
class Chooser {
 public:
  Chooser(std::span<const QueryContext> contexts, std::span<const QueryDocument> documents,
          std::int64_t room)
      : contexts_(contexts), documents_(documents), keep_(contexts.size()), room_(room) {
    for (std::size_t d = 0; d < documents.size(); ++d) {
      if (documents[d].id.empty()) add_all(documents[d]);
      by_id_.emplace(documents[d].id, d);
    }
  }

  /// Returns the index of a document's chunk; contexts.size(): it is not in the prompt.
  std::size_t find(const RankedChunk& chunk) const {
    const auto d = by_id_.find(chunk.document_id);
    if (d == by_id_.end()) return contexts_.size();
    const QueryDocument& document = documents_[d->second];
    if (!is_of(chunk, document)) return contexts_.size();
    for (std::size_t i = 0; i < document.num_contexts; ++i)
      if (contexts_[document.first_context + i].chunk == chunk.chunk)
        return document.first_context + i;
    return contexts_.size();
  }
  const QueryDocument& document_of(std::size_t context) const {
    const auto next = std::ranges::upper_bound(documents_, context, {},
                                               &QueryDocument::first_context);
    return *std::prev(next);
  }
  std::int64_t tokens_of(const QueryDocument& document) const {
    std::int64_t tokens = 0;
    for (std::size_t i = 0; i < document.num_contexts; ++i)
      tokens += count_of(contexts_[document.first_context + i].token_ids);
    return tokens;
  }
  void add(std::size_t context) {
    const auto& ids = contexts_[context].token_ids;
    if (keep_[context] || count_of(ids) > room_ || is_copy(context)) return;
    keep_[context] = true;
    room_ -= count_of(ids);
  }
  void add_all(const QueryDocument& document) {
    for (std::size_t i = 0; i < document.num_contexts; ++i) add(document.first_context + i);
  }
  bool any() const {
    return std::ranges::any_of(keep_, [](bool kept) { return kept; });
  }
  const std::vector<bool>& kept() const { return keep_; }

 private:
  /// Returns whether the same text stays already. Inline documents are wanted as they are.
  bool is_copy(std::size_t context) const {
    if (contexts_[context].document_id.empty()) return false;
    for (std::size_t i = 0; i < contexts_.size(); ++i)
      if (keep_[i] && contexts_[i].token_ids == contexts_[context].token_ids) return true;
    return false;
  }

  const std::span<const QueryContext> contexts_;
  const std::span<const QueryDocument> documents_;
  std::map<std::string, std::size_t> by_id_;  ///< the first document of each id
  std::vector<bool> keep_;
  std::int64_t room_;
};

/// Removes what does not stay, and renumbers.
void filter(const std::vector<bool>& keep, std::vector<QueryContext>& contexts,
            std::vector<QueryDocument>& documents) {
  std::vector<QueryContext> left;
  std::vector<QueryDocument> shown;
  for (QueryDocument& document : documents) {
    const std::size_t first = left.size();
    std::vector<std::int32_t> chunks;
    for (std::size_t i = document.first_context; i < document.first_context + document.num_contexts;
         ++i) {
      if (!keep[i]) continue;
      chunks.push_back(contexts[i].chunk);
      left.push_back(std::move(contexts[i]));
    }
    if (chunks.empty()) continue;
    if (chunks.size() < document.num_contexts) {
      document.chunks = std::move(chunks);
      document.all_chunks = document.num_contexts;
    }
    document.first_context = first;
    document.num_contexts = left.size() - first;
    shown.push_back(std::move(document));
  }
  contexts = std::move(left);
  documents = std::move(shown);
}

}  // namespace

void replace_outdated(std::span<const QueryDocument> documents, const RankChunks& rank,
                      std::vector<RankedChunk>& ranked) {
  const auto is_outdated = [&](const RankedChunk& chunk) {
    const auto d = std::ranges::find(documents, chunk.document_id, &QueryDocument::id);
    return d != documents.end() && !is_of(chunk, *d);
  };
  std::vector<std::string> ids;
  for (const RankedChunk& chunk : ranked) {
    if (is_outdated(chunk) && std::ranges::find(ids, chunk.document_id) == ids.end())
      ids.push_back(chunk.document_id);
  }
  if (ids.empty()) return;
  std::vector<RankedChunk> now = rank(ids), left;
  for (RankedChunk& chunk : ranked) {
    if (!is_outdated(chunk)) {
      left.push_back(std::move(chunk));
      continue;
    }
    const auto next = std::ranges::find(now, chunk.document_id, &RankedChunk::document_id);
    if (next == now.end()) continue;
    left.push_back(std::move(*next));
    now.erase(next);
  }
  ranked = std::move(left);
}

void keep_chunks(std::span<const RankedChunk> ranked, const ChunkLimits& limits,
                 std::vector<QueryContext>& contexts, std::vector<QueryDocument>& documents) {
  Chooser chooser(contexts, documents, limits.tokens);
  std::vector<std::size_t> found;
  for (const RankedChunk& chunk : ranked) {
    const std::size_t context = chooser.find(chunk);
    if (context < contexts.size()) found.push_back(context);
  }
  for (const std::size_t context : found) {
    const QueryDocument& document = chooser.document_of(context);
    chooser.add(context);
    if (chooser.tokens_of(document) <= limits.whole_document_tokens) chooser.add_all(document);
  }
  for (std::int32_t distance = 1; distance <= limits.neighbours; ++distance) {
    for (const std::size_t context : found) {
      const QueryDocument& document = chooser.document_of(context);
      const std::size_t first = document.first_context, end = first + document.num_contexts;
      const std::size_t d = to_size(distance);
      if (context >= first + d) chooser.add(context - d);
      if (context + d < end) chooser.add(context + d);
    }
  }
  if (!chooser.any())
    for (std::size_t i = 0; i < contexts.size(); ++i) chooser.add(i);
  filter(chooser.kept(), contexts, documents);
}

}  // namespace quire
