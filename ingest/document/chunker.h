/// Cuts a document's text into chunks with their token ids, each small enough to be one context.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/chat/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "ingest/document/document_types.h"

namespace quire {

struct TextRange {
  std::size_t begin = 0, end = 0;  ///< bytes, half-open, on code point boundaries
  bool operator==(const TextRange&) const = default;
};

/// Chunk is a range of the text, and the ids that PromptFormat::document(title, its text) gives.
struct Chunk {
  TextRange range;
  std::vector<std::int32_t> token_ids;
  std::uint32_t left_chunks = 0;  ///< as in DocumentChunk
};

/// ChunkLimits are limits of the model that a chunk must respect.
struct ChunkLimits {
  std::int64_t window_tokens = 0;    ///< longest context that the engine prefills
  std::int64_t document_tokens = 0;  ///< sum over the chunks
};

/// Returns the chunks of `text` in order. Every chunk carries the header of `title`, which counts
/// in its tokens.
///
/// - kTokens: at most max_tokens each. A chunk ends near the limit at a paragraph, else at a line,
///   sentence or word, else at any code point. With overlap_tokens the next chunk begins that much
///   earlier, at a word.
/// - kMarkdown: a chunk begins at a heading (not inside a code fence) and includes deeper sections
///   while they fit. A section above max_tokens is cut as kTokens.
/// - kSeparator: pieces end after the separator. Blank pieces join the previous one. Long pieces
///   are cut as kTokens.
/// - kNone: one chunk.
///
/// Without overlap the ranges tile the text; with it they cover it. Equal inputs give equal chunks.
/// Errors, field() relative to the document or the options: kInvalidArgument with "text" (more than
/// the window or document_tokens allow: message names limit and actual), "title" (leaves no room),
/// "chunking.max_tokens".
Result<std::vector<Chunk>> chunk_text(const Tokenizer& tokenizer, const PromptFormat& format,
                                      std::string_view title, std::string_view text,
                                      const ChunkingOptions& options, const ChunkLimits& limits);

/// Returns chunks with the caller's borders: `ranges` of `text`, unchanged. Field of errors:
/// "chunks[i]".
Result<std::vector<Chunk>> chunk_given(const Tokenizer& tokenizer, const PromptFormat& format,
                                       std::string_view title, std::string_view text,
                                       std::span<const TextRange> ranges,
                                       const ChunkLimits& limits);

/// Sets left_chunks: the chunks are divided into windows of at most `context_tokens` tokens, and
/// each chunk sees those before it in its window. A window begins with the last chunks of the one
/// before, up to a quarter of its tokens, so that its first new chunk is not without context.
void set_left_context(std::span<Chunk> chunks, std::int64_t context_tokens);
/// Returns the tokens of the chunks that chunk `index` attends to.
std::vector<std::int32_t> left_context(std::span<const Chunk> chunks, std::size_t index);

/// Checks ranges and contradictions of the options. Field of errors: "chunking.max_tokens", ...
Status validate(const ChunkingOptions& options);

/// Returns one line of ASCII that names the settings. Equal lines cut equal texts equally.
std::string describe(const ChunkingOptions& options);
/// Returns the part of it that names what a chunk sees before itself; empty: nothing.
std::string describe_context(const ChunkingOptions& options);

/// A section of a Markdown text: the offset of its heading line and its depth (1..6). Exposed for
/// tests.
struct MarkdownHeading {
  std::size_t begin = 0;
  int depth = 0;
};
std::vector<MarkdownHeading> find_markdown_headings(std::string_view text);
/// Returns the path of headings of each section of a Markdown text, as far as a document keeps
/// them (check_marks()); the last mark then has no heading.
std::vector<TextMark> markdown_marks(std::string_view text);

}  // namespace quire
