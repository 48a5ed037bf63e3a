#include "server/service/citations.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/index.h"
#include "engine/answer/cited_blocks.h"
#include "ingest/document/utf8.h"
#include "ingest/ingest_service.h"
#include "server/reply/explain_reply.h"
#include "server/service/services.h"

namespace quire {

struct CharRange {
  std::uint64_t begin = 0, end = 0;  ///< code points

  void include(const CharRange& other) {
    begin = std::min(begin, other.begin);
    end = std::max(end, other.end);
  }
};

/// The text of one document and the places of its blocks.
struct CitationCollector::DocumentText {
  std::string text;
  std::vector<TextMark> marks;
  std::map<std::pair<std::int32_t, std::uint64_t>, CharRange> blocks;  ///< by chunk and first token
};

namespace {

using DocumentText = CitationCollector::DocumentText;

constexpr std::size_t kMostWidening = 240;  ///< bytes to each side

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// Returns whether a sentence ends right before `at`.
bool sentence_border(std::string_view text, std::size_t at) {
  if (at == 0 || at >= text.size()) return true;
  if (text[at - 1] == '\n') return true;
  if (at >= 3) {
    const std::string_view mark = text.substr(at - 3, 3);  // U+3002, U+FF01, U+FF1F
    if (mark == "\xE3\x80\x82" || mark == "\xEF\xBC\x81" || mark == "\xEF\xBC\x9F") return true;
  }
  return is_space(text[at - 1]) && at >= 2 &&
         (text[at - 2] == '.' || text[at - 2] == '!' || text[at - 2] == '?');
}

bool word_border(std::string_view text, std::size_t at) {
  return at == 0 || at >= text.size() || is_space(text[at - 1]) || is_space(text[at]);
}

std::size_t widened(std::string_view text, std::size_t from, std::size_t limit, std::size_t most,
                    int step) {
  const auto search = [&](auto&& border, std::size_t reach) -> std::optional<std::size_t> {
    std::size_t at = from;
    for (std::size_t i = 0; i <= reach; ++i) {
      if (border(text, at)) return at;
      if (at == limit) return limit;
      at = step < 0 ? at - 1 : at + 1;
    }
    return std::nullopt;
  };
  if (const auto sentence = search(sentence_border, most)) return *sentence;
  constexpr std::size_t kWord = 32;
  return search(word_border, kWord).value_or(from);
}

/// Returns the bytes of a range of code points. Ranges that ascend read the text once.
TextRange bytes_of(CodePointSeeker& seeker, std::size_t text_bytes, const CharRange& chars) {
  const std::size_t begin = seeker.at(chars.begin).value_or(text_bytes);
  return {begin, seeker.at(std::max(chars.begin, chars.end)).value_or(text_bytes)};
}

std::optional<DocumentText> stored_text(Services& services, const QueryRecord& record,
                                        const QueryDocument& document) {
  if (!is_as_read(services, record.ns, document)) return std::nullopt;
  auto text = services.ingest->documents().content(record.ns, document.id);
  const auto blocks = find_model(services, record.model)
                          .value_or(own_model(services))
                          .blocks(record.ns, document.id);
  if (!text.ok() || !blocks.ok()) return std::nullopt;
  DocumentText out;
  out.text = std::move(*text);
  if (auto marks = services.ingest->documents().marks(record.ns, document.id); marks.ok())
    out.marks = std::move(*marks);
  // It may have been replaced between these reads.
  if (!is_as_read(services, record.ns, document)) return std::nullopt;
  for (const BlockInfo& b : *blocks) {
    if (b.char_begin && b.char_end)
      out.blocks[{b.chunk, b.token_begin}] = {*b.char_begin, *b.char_end};
  }
  return out;
}

std::optional<DocumentText> inline_text(const PromptFormat& format, const QueryRecord& record,
                                        const QueryDocument& document, const InlineText& source) {
  const auto tokens = format.document(source.title, source.text);
  if (!tokens.ok()) return std::nullopt;
  DocumentText out;
  out.text = source.text;
  CodePointCounter begin(out.text), end(out.text);
  const PlannedContext& context = record.plan.contexts[document.first_context];
  for (const PlannedBlock& b : context.blocks) {
    TextRange r{source.text.size(), 0};
    const TokenRange range = uncut_range(context, b);
    for (std::int32_t t = range.begin;
         t < std::min(range.end, static_cast<std::int32_t>(tokens->spans.size())); ++t) {
      r.begin = std::min<std::size_t>(r.begin, tokens->spans[at(t)].begin);
      r.end = std::max<std::size_t>(r.end, tokens->spans[at(t)].end);
    }
    out.blocks[{0, static_cast<std::uint64_t>(b.first_token)}] = {
        begin.at(code_point_floor(out.text, r.begin)), end.at(code_point_floor(out.text, r.end))};
  }
  return out;
}

/// Returns the document of a context; documents.size(): none.
std::size_t document_of(const QueryRecord& record, std::int32_t context) {
  const auto c = to_size(record.plan.contexts[at(context)].index);
  std::size_t d = 0;
  while (d < record.documents.size() &&
         (c < record.documents[d].first_context ||
          c >= record.documents[d].first_context + record.documents[d].num_contexts))
    ++d;
  return d;
}

/// Returns the text of a context and of its blocks; nothing where the characters are not known.
CitedText cited_text(const PlannedContext& context, const std::string& title,
                     const DocumentText& document) {
  CitedText out;
  out.title = title;
  CodePointSeeker seeker(document.text);
  TextRange all{document.text.size(), 0};
  for (const PlannedBlock& b : context.blocks) {
    const auto at = document.blocks.find(
        {context.chunk, static_cast<std::uint64_t>(b.first_token)});
    TextRange range{0, 0};
    if (at != document.blocks.end()) range = bytes_of(seeker, document.text.size(), at->second);
    out.blocks.emplace_back(range.begin, range.end);
    if (range.begin >= range.end) continue;
    all.begin = std::min(all.begin, range.begin);
    all.end = std::max(all.end, range.end);
  }
  if (all.begin >= all.end) return out;
  out.text = document.text.substr(all.begin, all.end - all.begin);
  for (auto& [begin, end] : out.blocks) {
    if (begin >= end) continue;
    begin -= all.begin;
    end -= all.begin;
  }
  return out;
}

/// Fills chunk, blocks, range and quote. Returns false if the characters are not known.
bool place(const PlannedContext& context, const CitedBlocks& cited, const DocumentText& document,
           Citation& out) {
  CharRange chunk{UINT64_MAX, 0}, blocks = chunk;
  for (std::size_t i = 0; i < context.blocks.size(); ++i) {
    const PlannedBlock& b = context.blocks[i];
    const auto at = document.blocks.find(
        {context.chunk, static_cast<std::uint64_t>(b.first_token)});
    if (at == document.blocks.end()) return false;
    chunk.include(at->second);
    const auto index = static_cast<std::int32_t>(i);
    if (index < cited.first_block || index >= cited.first_block + cited.num_blocks) continue;
    blocks.include(at->second);
    out.block_ids.push_back(block_id_text(b.id));
  }
  // Blocks that hold only the chunk's header stand for its beginning.
  if (blocks.begin >= blocks.end) blocks = {chunk.begin, std::min(chunk.begin + 1, chunk.end)};
  CodePointSeeker seeker(document.text);
  const std::size_t size = document.text.size();
  const TextRange limit = bytes_of(seeker, size, chunk);
  const TextRange range = widen_to_sentences(document.text, bytes_of(seeker, size, blocks), limit,
                                             kMostWidening);
  if (range.begin >= range.end) return false;
  CodePointCounter counter(document.text);
  out.chunk = context.chunk;
  out.start = counter.at(range.begin);
  out.end = counter.at(range.end);
  out.quote = document.text.substr(range.begin, range.end - range.begin);
  out.place = place_of(document.marks, range.begin, range.end);
  out.weight = cited.weight;
  return true;
}

}  // namespace

bool is_as_read(Services& services, const std::string& ns, const QueryDocument& document) {
  const auto now = services.ingest->documents().get(ns, document.id);
  return now.ok() && now->content_hash == document.content_hash &&
         now->chunking == document.chunking;
}

TextRange widen_to_sentences(std::string_view text, TextRange range, TextRange limit,
                             std::size_t most) {
  if (range.begin >= range.end) return range;
  range.begin = code_point_floor(
      text, widened(text, range.begin, std::min(limit.begin, range.begin), most, -1));
  range.end = code_point_floor(text,
                               widened(text, range.end, std::max(limit.end, range.end), most, 1));
  while (range.begin < range.end && is_space(text[range.begin])) ++range.begin;
  while (range.end > range.begin && is_space(text[range.end - 1])) --range.end;
  return range;
}

/// Returns the text of each document of the prompt; none: it is not known any more.
std::vector<std::optional<DocumentText>> CitationCollector::texts_of(
    Services& services, const QueryRecord& record) const {
  std::vector<std::optional<DocumentText>> out;
  std::size_t inline_index = 0;
  for (const QueryDocument& document : record.documents) {
    out.emplace_back();
    if (!document.id.empty())
      out.back() = stored_text(services, record, document);
    else if (inline_index < inline_texts_.size())
      out.back() = inline_text(format_, record, document, inline_texts_[inline_index]);
    inline_index += document.id.empty();
  }
  return out;
}

void CitationCollector::make(Services& services, QueryRecord& record) const {
  std::vector<Citation>& out = record.citations;
  const auto texts = texts_of(services, record);
  std::vector<CitedText> cited_texts;
  for (std::size_t c = 0; c < record.plan.contexts.size(); ++c) {
    const std::size_t d = document_of(record, static_cast<std::int32_t>(c));
    cited_texts.push_back(
        d < texts.size() && texts[d]
            ? cited_text(record.plan.contexts[c], record.documents[d].title, *texts[d])
            : CitedText());
  }
  WordSupport words(record.plan, cited_texts, question_, services.config()->retrieve.language);
  CodePointCounter answer(record.answer);
  CitationRule rule;
  rule.confidence = confidence_;
  const CitedAnswer found = cite(record.plan, attribution_, record.answer, token_ends_, rule,
                                 &words);
  for (const CitedBlocks& cited : found.blocks) {
    const std::size_t d = document_of(record, cited.context);
    if (d == record.documents.size() || !texts[d]) continue;
    Citation c;
    c.document_id = record.documents[d].id;
    c.document_index = d;
    if (!place(record.plan.contexts[at(cited.context)], cited, *texts[d], c)) continue;
    c.confidence = cited.confidence.value_or(0);
    c.answer_start = answer.at(cited.answer_begin);
    c.answer_end = answer.at(cited.answer_end);
    out.push_back(std::move(c));
  }
  CodePointCounter unsupported(record.answer);
  for (const auto& [begin, end] : found.unsupported) {
    const std::uint64_t first = unsupported.at(begin);
    record.unsupported.emplace_back(first, unsupported.at(end));
  }
}

}  // namespace quire
