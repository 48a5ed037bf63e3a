#include "ingest/document/related_chunks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "base/index.h"
#include "ingest/document/utf8.h"

namespace quire {
namespace {

/// More words of a long document make its search slower, and its beginning says what it is about.
constexpr std::size_t kMostQueryBytes = 4096;
constexpr std::size_t kMostFound = 16, kMostOwn = 240;

}  // namespace

Result<std::vector<RelatedChunk>> RelatedChunks::choose(const DocumentManifest& document,
                                                        std::string_view text, std::size_t chunks,
                                                        std::int64_t most_tokens) const {
  std::vector<RelatedChunk> out;
  if (!find_ || most_tokens < 1) return out;
  std::string query = document.title + "\n";
  query += text.substr(0, code_point_floor(text, kMostQueryBytes));
  QUIRE_ASSIGN_OR_RETURN(const auto found,
                         find_(document.ns, query, kMostFound + std::min(chunks, kMostOwn)));
  std::map<std::string, std::optional<DocumentManifest>> read;
  std::int64_t left = most_tokens;
  for (const FoundChunk& f : found) {
    if (f.document_id == document.id) continue;
    auto [it, first] = read.try_emplace(f.document_id);
    if (first) {
      auto other = store_.get_document(document.ns, f.document_id);
      const bool usable = other.ok() && may_see(document, *other) &&
                          other->fingerprint == document.fingerprint;
      if (usable) it->second = std::move(*other);
    }
    const auto& other = it->second;
    if (!other || f.chunk < 0 || to_size(f.chunk) >= other->chunks.size()) continue;
    const auto& ids = other->chunks[to_size(f.chunk)].token_ids;
    if (count_of(ids) > left) continue;
    left -= count_of(ids);
    out.push_back({f.document_id, other->content_hash, static_cast<std::uint32_t>(f.chunk), ids});
  }
  std::ranges::reverse(out);
  return out;
}

Result<bool> RelatedChunks::are_current(const DocumentManifest& document) const {
  std::string known;  // neighbours are often of one document
  for (const RelatedChunk& r : document.related) {
    if (r.document_id == known || r.document_id.empty()) continue;
    const auto head = store_.get_document_head(document.ns, r.document_id);
    if (!head.ok() && head.code() != Code::kNotFound) return head.status();
    if (!head.ok() || !may_see(document, *head) || head->content_hash != r.content_hash)
      return false;
    known = r.document_id;
  }
  return true;
}

Result<RelatedChunk> lead_in(const PromptFormat& format) {
  constexpr std::string_view kTitle = "The town library";
  constexpr std::string_view kText =
      "The library stands at the corner of the old market square. It was opened in 1921 and holds "
      "about forty thousand books, maps and letters. Readers may use the hall on the ground floor "
      "from Monday to Saturday. Two rooms on the first floor are kept for exhibitions, which "
      "change "
      "every spring and autumn. A small garden behind the house is open in summer.";
  QUIRE_ASSIGN_OR_RETURN(DocumentTokens tokens, format.document(kTitle, kText));
  return RelatedChunk{{}, {}, 0, std::move(tokens.ids)};
}

Result<ReadBehind> read_behind_lead_in(const PromptFormat& format) {
  QUIRE_ASSIGN_OR_RETURN(const RelatedChunk text, lead_in(format));
  return read_behind(std::span(&text, 1));
}

bool same_chunks(const std::vector<RelatedChunk>& a, const std::vector<RelatedChunk>& b) {
  return std::ranges::equal(a, b, [](const RelatedChunk& x, const RelatedChunk& y) {
    return x.document_id == y.document_id && x.content_hash == y.content_hash &&
           x.chunk == y.chunk && (!x.document_id.empty() || x.token_ids == y.token_ids);
  });
}

}  // namespace quire
