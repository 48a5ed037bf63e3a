/// Cuts a document's text into chunks, each small enough to be one context, and gives each its
/// token ids.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "ingest/document_types.h"

namespace quire {

struct TextRange {
  std::size_t begin = 0, end = 0;  ///< bytes, half-open, on code point boundaries
  bool operator==(const TextRange&) const = default;
};

/// One chunk: where it stands in the text, and the ids PromptFormat::document(title, its text)
/// gives.
struct Chunk {
  TextRange range;
  std::vector<std::int32_t> token_ids;
};

/// Limits of the model that a chunk has to respect.
struct ChunkLimits {
  std::int64_t window_tokens = 0;    ///< longest context the engine prefills
  std::int64_t document_tokens = 0;  ///< sum over the chunks
};

/// The chunks of `text` in order. Every chunk carries the header of `title` and counts it in its
/// tokens.
///
/// - kTokens: at most max_tokens each; ends at a paragraph, else line, sentence, word near the
/// limit, else at any code
///   point. With overlap_tokens the next chunk begins that much earlier, at a word.
/// - kMarkdown: a chunk begins at a heading (not inside a code fence) and takes in deeper sections
/// while they fit; a section
///   above max_tokens is cut as kTokens.
/// - kSeparator: pieces end behind the separator; blank pieces join the one before; long ones are
/// cut as kTokens.
/// - kNone: one chunk.
/// Without overlap the ranges tile the text; with it they cover it. Same input, same chunks.
/// Errors, field() relative to the document or the options: kInvalidArgument with "text" (more than
/// the window or document_tokens allow: message names limit and actual), "title" (leaves no room),
/// "chunking.max_tokens".
Result<std::vector<Chunk>> chunk_text(const Tokenizer& tokenizer, const PromptFormat& format,
                                      std::string_view title, std::string_view text,
                                      const ChunkingOptions& options, const ChunkLimits& limits);

/// Chunks the caller made: `ranges` of `text` as they are. Field of errors: "chunks[i]".
Result<std::vector<Chunk>> chunk_given(const PromptFormat& format, std::string_view title,
                                       std::string_view text, std::span<const TextRange> ranges,
                                       const ChunkLimits& limits);

/// Ranges, values that contradict each other. Field of errors: "chunking.max_tokens", ...
Status validate(const ChunkingOptions& options);

/// One line of ASCII that names the settings: equal lines cut equal texts equally.
std::string describe(const ChunkingOptions& options);

/// Sections of a Markdown text: offsets where a heading line begins, with its depth (1..6). Exposed
/// for tests.
struct MarkdownHeading {
  std::size_t begin = 0;
  int depth = 0;
};
std::vector<MarkdownHeading> find_markdown_headings(std::string_view text);

}  // namespace quire
