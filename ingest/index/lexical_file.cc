#include "ingest/index/lexical_file.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"
#include "cachestore/format/metadata.h"

namespace quire {
namespace {

constexpr std::size_t kWordsApart = 64, kTermsApart = 128, kBufferBytes = 1u << 20;

struct RowHeader {
  std::uint64_t version;
  std::uint32_t first_chunk, num_chunks, id_bytes, metadata_bytes;
};
struct WordHeader {
  std::uint64_t postings;  // offset
  std::uint32_t num_postings, word_bytes;
};

/// A row that has a term of metadata. Half of the term is enough, because what is found is checked.
struct TermRow {
  std::uint64_t term;
  std::uint32_t row, zero;
};
constexpr std::size_t kTermRowsRead = kBufferBytes / sizeof(TermRow);

std::uint64_t half_of(const std::string& term) {
  std::uint64_t half = 0;
  std::memcpy(&half, term.data(), std::min(sizeof half, term.size()));
  return half;
}

std::vector<TermRow> term_rows(std::span<const LexicalFile::Row> rows) {
  std::vector<TermRow> out;
  DocumentManifest m;
  const std::string status = status_term(m.status);
  for (std::uint32_t row = 0; row < rows.size(); ++row) {
    m.metadata_json = rows[row].metadata_json;
    for (const std::string& term : document_terms(m))
      if (term != status) out.push_back({half_of(term), row, 0});
  }
  std::sort(out.begin(), out.end(), [](const TermRow& a, const TermRow& b) {
    return a.term != b.term ? a.term < b.term : a.row < b.row;
  });
  return out;
}

class Output {
 public:
  explicit Output(ScratchFile& file) : file_(file) { buffer_.reserve(kBufferBytes); }
  std::uint64_t offset() const { return written_ + buffer_.size(); }
  void put(const void* bytes, std::size_t size) {
    buffer_.append(static_cast<const char*>(bytes), size);
    if (buffer_.size() >= kBufferBytes) (void)flush();  // a failure stays
  }
  Status flush() {
    if (status_.ok()) status_ = file_.write(written_, buffer_.data(), buffer_.size());
    written_ += buffer_.size();
    buffer_.clear();
    return status_;
  }

 private:
  ScratchFile& file_;
  std::string buffer_;
  std::uint64_t written_ = 0;
  Status status_;
};

}  // namespace

Result<LexicalFile> LexicalFile::write(const std::string& folder, const Contents& contents) {
  QUIRE_ASSIGN_OR_RETURN(ScratchFile bytes, ScratchFile::create(folder));
  LexicalFile file(std::move(bytes));
  Output out(file.file_);
  file.chunk_words_.assign(contents.chunk_words.begin(), contents.chunk_words.end());
  file.row_of_.resize(contents.chunk_words.size());
  file.live_.assign(contents.rows.size(), true);
  for (const Row& row : contents.rows) {
    const auto number = static_cast<std::uint32_t>(file.row_offsets_.size());
    for (std::uint32_t i = 0; i < row.num_chunks; ++i) file.row_of_[row.first_chunk + i] = number;
    file.row_offsets_.push_back(out.offset());
    const RowHeader header{row.version, row.first_chunk, row.num_chunks,
                           static_cast<std::uint32_t>(row.id.size()),
                           static_cast<std::uint32_t>(row.metadata_json.size())};
    out.put(&header, sizeof header);
    out.put(row.id.data(), row.id.size());
    out.put(row.metadata_json.data(), row.metadata_json.size());
  }
  const std::uint64_t postings = out.offset();
  for (const auto& [word, list] : contents.words) out.put(list.data(), list.size_bytes());
  std::uint64_t at = postings;
  for (std::size_t i = 0; i < contents.words.size(); ++i) {
    const auto& [word, list] = contents.words[i];
    if (i % kWordsApart == 0) {
      const auto& entry = file.some_words_.emplace_back(word, out.offset());
      file.word_bytes_ += sizeof entry + word.size();
    }
    const WordHeader header{at, static_cast<std::uint32_t>(list.size()),
                            static_cast<std::uint32_t>(word.size())};
    out.put(&header, sizeof header);
    out.put(word.data(), word.size());
    at += list.size_bytes();
  }
  file.words_end_ = out.offset();
  for (const TermRow& entry : term_rows(contents.rows)) {
    if (file.num_terms_++ % kTermsApart == 0) file.some_terms_.push_back(entry.term);
    out.put(&entry, sizeof entry);
  }
  QUIRE_RETURN_IF_ERROR(out.flush());
  file.end_ = out.offset();
  file.num_documents_ = contents.rows.size();
  file.num_chunks_ = contents.chunk_words.size();
  for (const std::uint32_t words : contents.chunk_words) file.num_words_ += words;
  return file;
}

Result<LexicalFile::Document> LexicalFile::document(std::uint32_t row) const {
  RowHeader header;
  QUIRE_RETURN_IF_ERROR(file_.read(row_offsets_[row], &header, sizeof header));
  Document d;
  d.version = header.version;
  d.first_chunk = header.first_chunk;
  d.num_chunks = header.num_chunks;
  std::string text(std::size_t{header.id_bytes} + header.metadata_bytes, '\0');
  QUIRE_RETURN_IF_ERROR(file_.read(row_offsets_[row] + sizeof header, text.data(), text.size()));
  d.id = text.substr(0, header.id_bytes);
  d.metadata_json = text.substr(header.id_bytes);
  return d;
}

Result<std::optional<std::uint32_t>> LexicalFile::find(std::string_view id) const {
  std::uint32_t low = 0, high = num_rows();
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    QUIRE_ASSIGN_OR_RETURN(const Document d, document(middle));
    if (d.id == id) return live_[middle] ? std::optional(middle) : std::nullopt;
    (d.id < id ? low : high) = d.id < id ? middle + 1 : middle;
  }
  return std::optional<std::uint32_t>();
}

Result<std::vector<LexicalPosting>> LexicalFile::postings(std::string_view word) const {
  std::vector<LexicalPosting> out;
  auto from = std::upper_bound(
      some_words_.begin(), some_words_.end(), word,
      [](std::string_view w, const auto& entry) { return w < entry.first; });
  if (from == some_words_.begin()) return out;
  const std::uint64_t end = from == some_words_.end() ? words_end_ : from->second;
  --from;
  std::string words(to_size(end - from->second), '\0');
  QUIRE_RETURN_IF_ERROR(file_.read(from->second, words.data(), words.size()));
  for (std::size_t at = 0; at < words.size();) {
    WordHeader header;
    std::memcpy(&header, words.data() + at, sizeof header);
    at += sizeof header;
    const std::string_view here(words.data() + at, header.word_bytes);
    at += header.word_bytes;
    if (here != word) continue;
    out.resize(header.num_postings);
    QUIRE_RETURN_IF_ERROR(
        file_.read(header.postings, out.data(), out.size() * sizeof(LexicalPosting)));
    std::erase_if(out, [this](const LexicalPosting& p) { return !live_[row_of_[p.chunk]]; });
    break;
  }
  return out;
}

Result<std::vector<std::uint32_t>> LexicalFile::rows_with(
    std::span<const std::string> terms) const {
  std::vector<std::uint32_t> out;
  std::vector<TermRow> entries;
  for (const std::string& term : terms) {
    const std::uint64_t half = half_of(term);
    const auto first = std::ranges::lower_bound(some_terms_, half),
               last = std::ranges::upper_bound(some_terms_, half);
    // The entry before the first known one may have the term, too.
    std::uint64_t at = kTermsApart * static_cast<std::uint64_t>(first - some_terms_.begin());
    at -= std::min<std::uint64_t>(at, kTermsApart);
    const std::uint64_t end = std::min(
        num_terms_, kTermsApart * static_cast<std::uint64_t>(last - some_terms_.begin()));
    while (at < end) {
      entries.resize(std::min<std::uint64_t>(kTermRowsRead, end - at));
      QUIRE_RETURN_IF_ERROR(file_.read(words_end_ + at * sizeof(TermRow), entries.data(),
                                       entries.size() * sizeof(TermRow)));
      at += entries.size();
      for (const TermRow& e : entries)
        if (e.term == half && live_[e.row]) out.push_back(e.row);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Status LexicalFile::remove(std::uint32_t row) {
  QUIRE_ASSIGN_OR_RETURN(const Document d, document(row));
  live_[row] = false;
  --num_documents_;
  num_chunks_ -= d.num_chunks;
  for (std::uint32_t i = 0; i < d.num_chunks; ++i) num_words_ -= chunk_words_[d.first_chunk + i];
  return {};
}

std::int64_t LexicalFile::memory_bytes() const {
  return static_cast<std::int64_t>(row_offsets_.size() * sizeof(std::uint64_t) + live_.size() / 8 +
                                   2 * row_of_.size() * sizeof(std::uint32_t) + word_bytes_ +
                                   some_terms_.size() * sizeof(std::uint64_t));
}

}  // namespace quire
