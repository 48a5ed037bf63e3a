#include "ingest/document/chunker.h"

#include <algorithm>

#include "base/index.h"
#include "engine/chat/text_bound.h"
#include "ingest/document/utf8.h"

namespace quire {
namespace {

constexpr std::int32_t kMinMaxTokens = 16;
constexpr std::int64_t kMinTextTokens = 8;  // room that a header must leave

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::size_t skip_spaces(std::string_view text, std::size_t pos, std::size_t end) {
  while (pos < end && is_space(text[pos])) ++pos;
  return pos;
}

/// Returns whether a sentence ends with the character before `pos`.
bool sentence_ends_at(std::string_view text, std::size_t pos) {
  const auto ends = [&](std::string_view mark) {
    return pos >= mark.size() && text.substr(pos - mark.size(), mark.size()) == mark;
  };
  // These are the ideographic . ! ?
  if (ends("\xE3\x80\x82") || ends("\xEF\xBC\x81") || ends("\xEF\xBC\x9F")) return true;
  std::size_t p = pos;
  while (p > 0 &&
         (text[p - 1] == '"' || text[p - 1] == '\'' || text[p - 1] == ')' || text[p - 1] == ']'))
    --p;
  if (p == 0) return false;
  const char c = text[p - 1];
  return c == '.' || c == '!' || c == '?';
}

/// Returns the best place to cut in (low, high]: after a paragraph, a line, a sentence, a word;
/// else `high`. White space stays with the text before it.
std::size_t best_cut(std::string_view text, std::size_t low, std::size_t high) {
  std::size_t line = 0, sentence = 0, word = 0;
  for (std::size_t p = high; p > low; --p) {
    const bool wide_end = sentence == 0 && p >= 3 &&
                          static_cast<unsigned char>(text[p - 1]) >= 0x80 &&
                          sentence_ends_at(text, p);
    if (wide_end) sentence = p;
    if (!is_space(text[p - 1]) || (p < text.size() && is_space(text[p]))) continue;
    std::size_t run = p;
    int newlines = 0;
    while (run > low && is_space(text[run - 1])) newlines += text[--run] == '\n';
    if (newlines >= 2) return p;
    if (newlines == 1 && line == 0) line = p;
    if (sentence == 0 && sentence_ends_at(text, run)) sentence = p;
    if (word == 0) word = p;
  }
  // The end of a line that ends a sentence, or of any sentence, reads better than a wrapped line.
  if (sentence != 0) return sentence;
  if (line != 0) return line;
  return word != 0 ? word : high;
}

/// Cuts ranges of one text and holds what all cuts share.
class Cutter {
 public:
  Cutter(const PromptFormat& format, std::string_view title, std::string_view text,
         const Encoding& encoding, const ChunkingOptions& options, std::int64_t budget,
         std::int64_t overhead)
      : format_(format),
        title_(title),
        text_(text),
        spans_(encoding.spans),
        options_(options),
        budget_(budget),
        overhead_(overhead) {}

  /// Emits one chunk if the range fits, else as many as needed.
  Status emit(TextRange range) {
    if (range.begin >= range.end) return {};
    if (tokens_in(range) + overhead_ <= budget_ + budget_ / 8) {
      QUIRE_ASSIGN_OR_RETURN(auto ids, ids_of(range));
      if (count_of(ids) <= budget_) {
        chunks_.push_back({range, std::move(ids)});
        return {};
      }
    }
    return split(range);
  }

  bool fits(TextRange range) const { return tokens_in(range) + overhead_ <= budget_; }
  std::vector<Chunk> take() { return std::move(chunks_); }

 private:
  std::size_t token_at(std::size_t byte) const {
    const auto it = std::lower_bound(spans_.begin(), spans_.end(), byte,
                                     [](const TokenSpan& s, std::size_t b) { return s.begin < b; });
    return to_size(it - spans_.begin());
  }
  std::size_t byte_at(std::size_t token) const {
    return token < spans_.size() ? spans_[token].begin : text_.size();
  }
  std::int64_t tokens_in(TextRange r) const {
    return static_cast<std::int64_t>(token_at(r.end)) -
           static_cast<std::int64_t>(token_at(r.begin));
  }

  Result<std::vector<std::int32_t>> ids_of(TextRange r) const {
    QUIRE_ASSIGN_OR_RETURN(auto doc,
                           format_.document(title_, text_.substr(r.begin, r.end - r.begin)));
    return std::move(doc.ids);
  }

  std::size_t next_code_point(std::size_t pos) const {
    ++pos;
    while (pos < text_.size() && (static_cast<unsigned char>(text_[pos]) & 0xC0) == 0x80) ++pos;
    return pos;
  }

  /// Returns the end of a chunk of about `limit` text tokens that begins at `begin`.
  std::size_t cut_after(std::size_t begin, std::size_t end, std::int64_t limit) const {
    const std::size_t first = token_at(begin);
    const auto at = [&](std::int64_t n) {
      return std::min(end, code_point_floor(text_, byte_at(first + to_size(n))));
    };
    const std::size_t high = std::max(at(limit), next_code_point(begin));
    // A chunk that ends within the overlap would repeat the one before and add nothing.
    const std::int64_t least = overlap() == 0 ? limit / 2
                                              : std::clamp(overlap() + limit / 8, limit / 2, limit);
    const std::size_t low = std::max(at(least), begin);
    return high >= end ? end : best_cut(text_, low, high);
  }

  Status split(TextRange range) {
    std::size_t begin = range.begin;
    const std::int64_t full = budget_ - overhead_;
    while (begin < range.end) {
      const std::int64_t left = tokens_in({begin, range.end});
      std::int64_t limit = full;
      // This avoids a tiny last chunk.
      if (left > full && left < 2 * full) limit = std::min(full, (left + 1) / 2 + full / 16);
      Chunk chunk;
      while (true) {
        chunk.range = {begin, cut_after(begin, range.end, limit)};
        QUIRE_ASSIGN_OR_RETURN(chunk.token_ids, ids_of(chunk.range));
        const std::int64_t over = count_of(chunk.token_ids) - budget_;
        if (over <= 0) break;
        if (limit <= 1) {
          return Status::invalid("chunking.max_tokens",
                                 "one character at byte " + std::to_string(begin) + " needs " +
                                     std::to_string(chunk.token_ids.size()) +
                                     " tokens with its header; use at least that many");
        }
        limit = std::max<std::int64_t>(1, std::min(limit - 1, limit - over));
      }
      const std::size_t end = chunk.range.end;
      chunks_.push_back(std::move(chunk));
      if (end >= range.end) break;
      begin = next_begin(begin, end);
    }
    return {};
  }

  /// Returns how many tokens of text chunks share; at most half of those that a chunk has besides
  /// its header.
  std::int64_t overlap() const {
    return std::clamp<std::int64_t>((budget_ - overhead_) / 2, 0, options_.overlap_tokens);
  }

  std::size_t next_begin(std::size_t begin, std::size_t end) const {
    if (overlap() == 0) return end;
    const std::size_t cut = token_at(end);
    const std::size_t most = to_size(overlap());
    std::size_t back = code_point_floor(text_, byte_at(cut > most ? cut - most : 0));
    // The chunk moves forward to the next word, if there is one.
    if (back > 0 && back < end && !is_space(text_[back - 1])) {
      std::size_t word = back;
      while (word < end && !is_space(text_[word])) ++word;
      word = skip_spaces(text_, word, end);
      if (word < end) back = word;
    }
    return back > begin && back < end ? back : end;
  }

  const PromptFormat& format_;
  std::string_view title_, text_;
  const std::vector<TokenSpan>& spans_;
  const ChunkingOptions& options_;
  std::int64_t budget_, overhead_;
  std::vector<Chunk> chunks_;
};

Status cut_markdown(std::string_view text, Cutter& cutter) {
  const std::vector<MarkdownHeading> headings = find_markdown_headings(text);
  std::vector<MarkdownHeading> sections;
  if (headings.empty() || (headings[0].begin > 0 && !is_blank(text.substr(0, headings[0].begin))))
    sections.push_back({0, 7});
  sections.insert(sections.end(), headings.begin(), headings.end());
  sections.front().begin = 0;
  for (std::size_t i = 0; i < sections.size();) {
    const auto end_of = [&](std::size_t k) {
      return k + 1 < sections.size() ? sections[k + 1].begin : text.size();
    };
    TextRange range{sections[i].begin, end_of(i)};
    std::size_t next = i + 1;
    while (next < sections.size() && sections[next].depth > sections[i].depth &&
           cutter.fits({range.begin, end_of(next)})) {
      range.end = end_of(next++);
    }
    QUIRE_RETURN_IF_ERROR(cutter.emit(range));
    i = next;
  }
  return {};
}

Status cut_separator(std::string_view text, std::string_view separator, Cutter& cutter) {
  TextRange pending{0, 0};
  std::size_t pos = 0;
  while (pos < text.size()) {
    const std::size_t hit = text.find(separator, pos);
    const std::size_t end = hit == std::string_view::npos ? text.size() : hit + separator.size();
    const std::string_view body = text.substr(
        pos, (hit == std::string_view::npos ? text.size() : hit) - pos);
    if (!is_blank(body) && pending.end > pending.begin &&
        !is_blank(text.substr(pending.begin, pos - pending.begin))) {
      QUIRE_RETURN_IF_ERROR(cutter.emit(pending));
      pending = {pos, end};
    } else {
      pending.end = end;
    }
    pos = end;
  }
  return cutter.emit(pending);
}

Status check_total(const std::vector<Chunk>& chunks, const ChunkLimits& limits) {
  std::int64_t total = 0;
  for (const Chunk& c : chunks) total += count_of(c.token_ids);
  if (limits.document_tokens > 0 && total > limits.document_tokens) {
    return Status::invalid(
        "text", "the document has " + std::to_string(total) + " tokens, the limit is " +
                    std::to_string(limits.document_tokens) + " (limits.document_tokens); split it");
  }
  return {};
}

/// Returns the error of a text of far more tokens than a bound takes. `bound` names it and the fix.
Status too_long_text(const std::string& field, const std::string& what, const TextExcess& excess,
                     std::string_view bound) {
  std::string message = what + " has " + std::to_string(excess.bytes) + " bytes";
  if (excess.bytes > excess.most_bytes)
    message += "; no text of more than " + std::to_string(excess.most_bytes) + " bytes fits in " +
               std::to_string(excess.most_tokens) + " tokens (";
  else
    message += " and more than " + std::to_string(excess.most_tokens) + " tokens (";
  return Status::invalid(field, message + std::string(bound) + ")");
}

Status check_bound(const Tokenizer& tokenizer, std::string_view text, std::int64_t most,
                   std::string_view bound) {
  const auto excess = TextBound(tokenizer, most).add(text);
  return excess ? too_long_text("text", "the document", *excess, bound) : Status();
}

std::string too_long(std::string_view what, std::size_t actual, std::int64_t limit) {
  return std::string(what) + " has " + std::to_string(actual) +
         " tokens, the model's window allows " + std::to_string(limit);
}

}  // namespace

Result<std::vector<Chunk>> chunk_text(const Tokenizer& tokenizer, const PromptFormat& format,
                                      std::string_view title, std::string_view text,
                                      const ChunkingOptions& options, const ChunkLimits& limits) {
  QUIRE_RETURN_IF_ERROR(validate(options));
  QUIRE_RETURN_IF_ERROR(
      check_bound(tokenizer, text, limits.document_tokens, "limits.document_tokens; split it"));
  if (options.strategy == ChunkStrategy::kNone) {
    QUIRE_RETURN_IF_ERROR(check_bound(tokenizer, text, limits.window_tokens,
                                      "the model's window; use chunking.strategy tokens"));
    QUIRE_ASSIGN_OR_RETURN(auto doc, format.document(title, text));
    if (count_of(doc.ids) > limits.window_tokens) {
      return Status::invalid("text",
                             too_long("the document", doc.ids.size(), limits.window_tokens) +
                                 "; use chunking.strategy tokens");
    }
    std::vector<Chunk> one;
    one.push_back({{0, text.size()}, std::move(doc.ids)});
    QUIRE_RETURN_IF_ERROR(check_total(one, limits));
    return one;
  }
  QUIRE_ASSIGN_OR_RETURN(auto header, format.document(title, ""));
  const auto overhead = count_of(header.ids);
  const std::int64_t budget = std::min<std::int64_t>(options.max_tokens, limits.window_tokens);
  if (overhead + kMinTextTokens > budget) {
    return Status::invalid(
        "title", "the document's header takes " + std::to_string(overhead) + " of the " +
                     std::to_string(budget) +
                     " tokens of a chunk; shorten the title or raise chunking.max_tokens");
  }
  const Encoding encoding = tokenizer.encode_with_offsets(text);
  Cutter cutter(format, title, text, encoding, options, budget, overhead);
  Status status;
  switch (options.strategy) {
    case ChunkStrategy::kMarkdown:
      status = cut_markdown(text, cutter);
      break;
    case ChunkStrategy::kSeparator:
      status = cut_separator(text, options.separator, cutter);
      break;
    default:
      status = cutter.emit({0, text.size()});
  }
  QUIRE_RETURN_IF_ERROR(status);
  std::vector<Chunk> chunks = cutter.take();
  QUIRE_RETURN_IF_ERROR(check_total(chunks, limits));
  return chunks;
}

Result<std::vector<Chunk>> chunk_given(const Tokenizer& tokenizer, const PromptFormat& format,
                                       std::string_view title, std::string_view text,
                                       std::span<const TextRange> ranges,
                                       const ChunkLimits& limits) {
  std::vector<Chunk> chunks;
  TextBound all(tokenizer, limits.document_tokens);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const std::string name = "chunks[" + std::to_string(i) + "]";
    const std::string_view part = text.substr(ranges[i].begin, ranges[i].end - ranges[i].begin);
    if (const auto excess = all.add(part))
      return too_long_text("text", "the document", *excess, "limits.document_tokens; split it");
    if (const auto excess = TextBound(tokenizer, limits.window_tokens).add(part))
      return too_long_text(name, name, *excess, "the model's window; split it");
    QUIRE_ASSIGN_OR_RETURN(auto doc, format.document(title, part));
    if (count_of(doc.ids) > limits.window_tokens) {
      return Status::invalid(name,
                             too_long(name, doc.ids.size(), limits.window_tokens) + "; split it");
    }
    chunks.push_back({ranges[i], std::move(doc.ids)});
  }
  QUIRE_RETURN_IF_ERROR(check_total(chunks, limits));
  return chunks;
}

void set_left_context(std::span<Chunk> chunks, std::int64_t context_tokens) {
  std::size_t first = 0;
  std::int64_t before = 0;  // tokens of the chunks from `first` on
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    const std::int64_t own = count_of(chunks[i].token_ids);
    if (before + own > context_tokens) {
      const std::int64_t most = std::min(context_tokens / 4, context_tokens - own);
      for (first = i, before = 0; first > 0; --first) {
        const std::int64_t more = count_of(chunks[first - 1].token_ids);
        if (before + more > most) break;
        before += more;
      }
    }
    chunks[i].left_chunks = static_cast<std::uint32_t>(i - first);
    before += own;
  }
}

std::vector<std::int32_t> left_context(std::span<const Chunk> chunks, std::size_t index) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = index - chunks[index].left_chunks; i < index; ++i)
    ids.insert(ids.end(), chunks[i].token_ids.begin(), chunks[i].token_ids.end());
  return ids;
}

Status validate(const ChunkingOptions& options) {
  if (options.max_tokens < kMinMaxTokens) {
    return Status::invalid("chunking.max_tokens", "must be at least " +
                                                      std::to_string(kMinMaxTokens) + ", not " +
                                                      std::to_string(options.max_tokens));
  }
  if (options.overlap_tokens < 0 || options.overlap_tokens > options.max_tokens / 2) {
    return Status::invalid("chunking.overlap_tokens", "must be from 0 to half of max_tokens (" +
                                                          std::to_string(options.max_tokens) +
                                                          "), not " +
                                                          std::to_string(options.overlap_tokens));
  }
  if (options.overlap_tokens > 0 && options.strategy != ChunkStrategy::kTokens) {
    return Status::invalid("chunking.overlap_tokens", "only strategy tokens overlaps; use 0");
  }
  if (options.related_tokens < 0 || options.related_tokens > kMaxRelatedTokens) {
    return Status::invalid("chunking.related_tokens",
                           "must be from 0 to " + std::to_string(kMaxRelatedTokens) + ", not " +
                               std::to_string(options.related_tokens));
  }
  if (options.strategy == ChunkStrategy::kSeparator) {
    if (options.separator.empty() || options.separator.size() > 64)
      return Status::invalid("chunking.separator", "must have 1 to 64 bytes");
    if (find_invalid_utf8(options.separator))
      return Status::invalid("chunking.separator", "is not valid UTF-8");
  } else if (!options.separator.empty()) {
    return Status::invalid("chunking.separator", "only strategy separator takes one");
  }
  return {};
}

std::string describe_context(const ChunkingOptions& options) {
  std::string out;
  if (options.context_tokens > 0) out += " context=" + std::to_string(options.context_tokens);
  if (options.related_tokens > 0) out += " related=" + std::to_string(options.related_tokens);
  if (options.lead_in.value_or(false)) out += " lead_in=1";
  return out;
}

std::string describe(const ChunkingOptions& options) {
  std::string line(chunk_strategy_name(options.strategy));
  if (options.strategy == ChunkStrategy::kNone) {
    ChunkingOptions seen;
    seen.context_tokens = 0;
    seen.related_tokens = options.related_tokens;
    seen.lead_in = options.lead_in;
    return line + describe_context(seen);
  }
  line += describe_context(options) + " max=" + std::to_string(options.max_tokens) +
          " overlap=" + std::to_string(options.overlap_tokens);
  if (options.strategy == ChunkStrategy::kSeparator) {
    line += " separator=";
    for (const char c : options.separator) {
      constexpr std::string_view kHex = "0123456789abcdef";
      line += kHex[static_cast<unsigned char>(c) >> 4];
      line += kHex[static_cast<unsigned char>(c) & 15];
    }
  }
  return line;
}

namespace {

struct Line {
  std::string_view text;  // without its end
  std::size_t begin = 0, next = 0;
};

Line line_at(std::string_view text, std::size_t pos) {
  std::size_t end = text.find('\n', pos);
  const std::size_t next = end == std::string_view::npos ? text.size() : end + 1;
  if (end == std::string_view::npos) end = text.size();
  if (end > pos && text[end - 1] == '\r') --end;
  return {text.substr(pos, end - pos), pos, next};
}

/// Returns the length of the run of `c` that begins the line after at most three spaces.
std::size_t leading_run(std::string_view line, char c, std::size_t* at = nullptr) {
  std::size_t indent = 0;
  while (indent < line.size() && indent < 4 && line[indent] == ' ') ++indent;
  if (indent > 3) return 0;
  std::size_t n = indent;
  while (n < line.size() && line[n] == c) ++n;
  if (at) *at = n;
  return n - indent;
}

bool only(std::string_view line, char c) {
  std::size_t at = 0;
  return leading_run(line, c, &at) > 0 && is_blank(line.substr(at));
}

}  // namespace

std::vector<MarkdownHeading> find_markdown_headings(std::string_view text) {
  std::vector<MarkdownHeading> headings;
  std::size_t pos = 0, fence = 0;
  char fence_char = 0;
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t paragraph = kNone;  // begin of the previous line, if it is plain text
  if (const Line first = line_at(text, 0); first.text == "---") {  // front matter
    for (std::size_t p = first.next; p < text.size();) {
      const Line line = line_at(text, p);
      p = line.next;
      if (line.text == "---" || line.text == "...") {
        pos = p;
        break;
      }
    }
  }
  while (pos < text.size()) {
    const Line line = line_at(text, pos);
    pos = line.next;
    std::size_t at = 0;
    if (fence > 0) {
      if (leading_run(line.text, fence_char, &at) >= fence && is_blank(line.text.substr(at)))
        fence = 0;
      paragraph = kNone;
      continue;
    }
    for (const char c : {'`', '~'}) {
      if (const std::size_t n = leading_run(line.text, c); n >= 3) fence = n, fence_char = c;
    }
    const std::size_t hashes = leading_run(line.text, '#', &at);
    if (fence > 0) {
      paragraph = kNone;
    } else if (hashes >= 1 && hashes <= 6 &&
               (at == line.text.size() || line.text[at] == ' ' || line.text[at] == '\t')) {
      headings.push_back({line.begin, static_cast<int>(hashes)});
      paragraph = kNone;
    } else if (paragraph != kNone && (only(line.text, '=') || only(line.text, '-'))) {
      headings.push_back({paragraph, line.text.find('=') != std::string_view::npos ? 1 : 2});
      paragraph = kNone;
    } else if (is_blank(line.text)) {
      paragraph = kNone;
    } else {
      paragraph = line.begin;
    }
  }
  return headings;
}

std::vector<TextMark> markdown_marks(std::string_view text) {
  HeadingPath path;
  std::vector<TextMark> marks;
  std::size_t bytes = 0;
  for (const MarkdownHeading& heading : find_markdown_headings(text)) {
    std::string_view title = line_at(text, heading.begin).text;
    const auto trim = [&title](std::string_view what) {
      title.remove_prefix(std::min(title.find_first_not_of(what), title.size()));
      title.remove_suffix(title.size() - (title.find_last_not_of(what) + 1));
    };
    trim(" \t");
    if (title.starts_with('#')) trim("#");
    trim(" \t");
    constexpr std::size_t kMostBytes = 512;  // of one title; a path has at most six
    path.open(heading.depth, std::string(title.substr(0, code_point_floor(title, kMostBytes))));
    marks.push_back({heading.begin, 0, path.path()});
    bytes += marks.back().heading.size();
    if (marks.size() < kMaxMarks && bytes <= kMaxMarkBytes) continue;
    // A document keeps no more, and what follows is not below the heading before.
    marks.back().heading.clear();
    break;
  }
  return marks;
}

}  // namespace quire
