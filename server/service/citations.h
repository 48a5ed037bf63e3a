/// Citations of one answer: what the engine attributed to blocks, said in characters of the
/// documents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/json/citation_codec.h"

namespace quire {

struct Services;
struct QueryRecord;

/// Text of an inline document of the prompt.
struct InlineText {
  std::string title, text;
};

/// Gathers what a query's sink hears; then makes the citations. Threads: on_token() and
/// on_attribution() on the engine thread; make() once, after on_done.
class CitationCollector {
 public:
  /// `inline_texts`: of the record's documents without an id, in their order.
  explicit CitationCollector(std::vector<InlineText> inline_texts)
      : inline_texts_(std::move(inline_texts)) {}

  /// `answer_bytes`: of the answer with this token's text.
  void on_token(std::size_t answer_bytes) { token_ends_.push_back(answer_bytes); }
  void on_attribution(const Attribution& attribution) { attribution_ = attribution; }

  /// Citations of the finished record. A document that was changed or deleted since, or whose
  /// characters are not known, is left out. May wait on disk.
  std::vector<Citation> make(Services& services, const QueryRecord& record) const;

 private:
  const std::vector<InlineText> inline_texts_;
  std::vector<std::size_t> token_ends_;
  Attribution attribution_;
};

/// The range widened to whole sentences of `text`, at most `most` bytes to each side and not past
/// [begin_limit, end_limit); where no sentence ends that near, to whole words. White space around
/// it is left out. Offsets are bytes, at code points.
struct TextRange {
  std::size_t begin = 0, end = 0;
};
TextRange widen_to_sentences(std::string_view text, TextRange range, TextRange limit,
                             std::size_t most);

}  // namespace quire
