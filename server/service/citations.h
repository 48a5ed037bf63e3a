/// Makes the citations of one answer: the engine's attribution to blocks becomes character ranges
/// of documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/reply/citation_reply.h"

namespace quire {

struct Services;
struct QueryDocument;
struct QueryRecord;

/// InlineText is the text of an inline document of the prompt.
struct InlineText {
  std::string title, text;
};

/// Collects the tokens and the attribution that a query's sink receives, then makes the citations.
/// Threads: on_token() and on_attribution() on the engine thread; make() once, after on_done.
class CitationCollector {
 public:
  /// `inline_texts` belong to the record's documents without an id, in their order; the prompt was
  /// made with `format`, and `confidence` is that of the model. The record keeps no question unless
  /// settings say so.
  CitationCollector(PromptFormat format, const CitationConfidence& confidence, std::string question,
                    std::vector<InlineText> inline_texts)
      : format_(std::move(format)),
        confidence_(confidence),
        question_(std::move(question)),
        inline_texts_(std::move(inline_texts)) {}

  /// `answer_bytes` is the length of the answer including this token's text.
  void on_token(std::size_t answer_bytes) { token_ends_.push_back(answer_bytes); }
  void on_attribution(const Attribution& attribution) { attribution_ = attribution; }

  /// Sets the citations of the finished record, and the parts of the answer without support. It
  /// leaves out documents changed or deleted since, or without known characters. It may wait on
  /// disk.
  void make(Services& services, QueryRecord& record) const;

  struct DocumentText;  ///< of one document, with the places of its blocks

 private:
  std::vector<std::optional<DocumentText>> texts_of(Services& services,
                                                    const QueryRecord& record) const;

  const PromptFormat format_;
  const CitationConfidence confidence_;
  const std::string question_;
  const std::vector<InlineText> inline_texts_;
  std::vector<std::size_t> token_ends_;
  Attribution attribution_;
};

/// Returns whether a document of a prompt is still what the prompt has: the same text, cut at the
/// same places, so that chunks and blocks have the same numbers. (disk)
bool is_as_read(Services& services, const std::string& ns, const QueryDocument& document);

/// Widens the range to whole sentences of `text`, at most `most` bytes to each side and not past
/// `limit`. If no sentence ends that near, it widens to whole words. Surrounding white space is
/// left out. Offsets are bytes at code points.
struct TextRange {
  std::size_t begin = 0, end = 0;
};
TextRange widen_to_sentences(std::string_view text, TextRange range, TextRange limit,
                             std::size_t most);

}  // namespace quire
