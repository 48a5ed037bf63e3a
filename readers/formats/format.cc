#include "readers/formats/format.h"

#include <algorithm>
#include <cctype>

#include "base/utf8.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

ReadFunction pdf_reader = nullptr;  // set once, before any file is read

Result<std::vector<ReadDocument>> read_pdf(std::string_view bytes, const ReaderRequest& request) {
  if (!pdf_reader)
    return Status::unimplemented("this build reads no PDF; build it with -DQUIRE_PDF=ON");
  return pdf_reader(bytes, request);
}

constexpr Format kPdf{"PDF", read_pdf}, kHtml{"HTML", read_html},
    kMarkdown{"Markdown", read_markdown}, kText{"text", read_text}, kCsv{"CSV", read_csv},
    kDocx{"DOCX", read_docx}, kXlsx{"XLSX", read_xlsx}, kPptx{"PPTX", read_pptx},
    kOdt{"OpenDocument", read_odt}, kEpub{"EPUB", read_epub}, kMbox{"mailbox", read_mbox},
    kEml{"mail", read_eml};

struct Ending {
  std::string_view ending;
  const Format* format;
};
constexpr Ending kEndings[] = {
    {".htm", &kHtml},          {".html", &kHtml},      {".xhtml", &kHtml}, {".md", &kMarkdown},
    {".markdown", &kMarkdown}, {".mdown", &kMarkdown}, {".csv", &kCsv},    {".tsv", &kCsv},
    {".mbox", &kMbox},         {".mbx", &kMbox},       {".eml", &kEml},    {".mht", &kEml},
    {".mhtml", &kEml}};

/// Beginnings of files that hold no text which is read here.
struct Magic {
  std::string_view bytes, what;
};
using namespace std::literals;
constexpr Magic kRefused[] = {
    {"\x89PNG"sv, "a PNG image"},
    {"\xff\xd8\xff"sv, "a JPEG image"},
    {"GIF8"sv, "a GIF image"},
    {"II*\0"sv, "a TIFF image"},
    {"MM\0*"sv, "a TIFF image"},
    {"\x1f\x8b"sv, "a gzip archive; unpack it first"},
    {"BZh"sv, "a bzip2 archive; unpack it first"},
    {"\xfd"
     "7zXZ\0"sv,
     "an xz archive; unpack it first"},
    {"\x28\xb5\x2f\xfd"sv, "a Zstandard archive; unpack it first"},
    {"7z\xbc\xaf\x27\x1c"sv, "a 7z archive; unpack it first"},
    {"Rar!"sv, "a RAR archive; unpack it first"},
    {"\x7f"
     "ELF"sv,
     "a program"},
    {"SQLite format 3"sv, "a SQLite database; export it as CSV"},
    {"{\\rtf"sv, "a rich text file; save it as DOCX or PDF"},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv,
     "an old Office file, or one that is protected by a password; save it as DOCX without one"},
    {"OggS"sv, "an audio or video file"},
    {"ID3"sv, "an audio file"},
    {"%!PS"sv, "a PostScript file; save it as PDF"},
};

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool looks_like_html(std::string_view bytes) {
  const std::string head = lower(bytes.substr(0, 1024));
  const auto begin = head.find_first_not_of("\xef\xbb\xbf \t\r\n");
  const std::string_view rest = begin == std::string::npos ? std::string_view()
                                                           : std::string_view(head).substr(begin);
  return rest.starts_with("<!doctype html") || rest.starts_with("<html") ||
         (rest.starts_with("<?xml") && rest.find("<html") != std::string_view::npos);
}

bool begins_with_header(std::string_view bytes) {
  for (const auto* name : {"return-path:", "received:", "mime-version:", "delivered-to:",
                           "message-id:", "x-mozilla-status:"})
    if (lower(bytes.substr(0, 32)).starts_with(name)) return true;
  return false;
}

Result<const Format*> detect_zip(std::string_view bytes) {
  const auto names = zip_names(bytes);
  if (!names.ok()) return names.status();
  const auto has = [&](std::string_view prefix) {
    return std::any_of(names->begin(), names->end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  };
  if (has("word/document")) return &kDocx;
  if (has("META-INF/container.xml")) return &kEpub;
  if (has("xl/workbook.xml")) return &kXlsx;
  if (has("ppt/presentation.xml")) return &kPptx;
  if (has("xl/")) return Status::unimplemented("is a binary workbook; save it as XLSX");
  if (has("content.xml") && has("META-INF/manifest.xml")) return &kOdt;
  return Status::unimplemented("is a zip archive; unpack it first");
}

void strip_nul(std::string& text) {
  text.erase(std::remove(text.begin(), text.end(), '\0'), text.end());
}

void make_plain(std::string& text) {
  for (;;) {
    const std::size_t good = tokenizer_internal::valid_utf8_prefix(text);
    if (good == text.size()) break;
    text.replace(good, 1, "?");
  }
  strip_nul(text);
}

void cut(std::string& text, std::size_t most) {
  if (text.size() <= most) return;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  text.resize(most);
}

void one_line(std::string& text, std::size_t most) {
  make_plain(text);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  text.erase(0, std::min(text.find_first_not_of(' '), text.size()));
  text.erase(text.find_last_not_of(' ') + 1);
  cut(text, most);
}

}  // namespace

void set_pdf_reader(ReadFunction read) { pdf_reader = read; }

Result<const Format*> detect_format(std::string_view bytes, const std::string& name) {
  if (bytes.empty()) return Status::not_found("is empty");
  if (bytes.substr(0, 1024).find("%PDF-") != std::string_view::npos) return &kPdf;
  if (bytes.starts_with("PK\x03\x04")) return detect_zip(bytes);
  for (const Magic& magic : kRefused)
    if (bytes.starts_with(magic.bytes))
      return Status::unimplemented("is " + std::string(magic.what));
  if (bytes.starts_with("From ") && bytes.substr(0, 4096).find("\nFrom:") != std::string_view::npos)
    return &kMbox;
  const std::string small = lower(name);
  for (const Ending& e : kEndings)
    if (small.ends_with(e.ending)) return e.format;
  if (looks_like_html(bytes)) return &kHtml;
  if (begins_with_header(bytes)) return &kEml;
  return &kText;
}

Result<std::vector<ReadDocument>> finish_documents(Result<std::vector<ReadDocument>> read,
                                                   const ReaderRequest& request) {
  if (!read.ok()) return read;
  constexpr std::size_t kMost = 1024, kMaxItems = 32;
  std::string stem = request.name.substr(request.name.rfind('/') + 1);
  if (const auto dot = stem.rfind('.'); dot != std::string::npos && dot > 0) stem.resize(dot);
  std::uint64_t total = 0;
  std::vector<ReadDocument> out;
  for (ReadDocument& d : *read) {
    if (tokenizer_internal::valid_utf8_prefix(d.text) != d.text.size() ||
        d.text.find('\0') != std::string::npos)
      return Status::internal("the reader made a text that is not valid");
    total += d.text.size();
    if (total > request.limits.text_bytes)
      return Status::exhausted("has more than " + std::to_string(request.limits.text_bytes >> 20) +
                               " MiB of text; split it");
    if (d.text.find_first_not_of(" \t\r\n\f\v") == std::string::npos) continue;
    one_line(d.title, kMost);
    if (d.title.empty()) {
      d.title = stem;
      one_line(d.title, kMost);
    }
    one_line(d.part, kMost);
    for (TextMark& mark : d.marks) one_line(mark.heading, kMost);
    for (auto& [key, value] : d.metadata) one_line(value, kMost);
    std::erase_if(d.metadata, [](const auto& member) { return member.second.empty(); });
    if (d.metadata.size() > kMaxItems) d.metadata.resize(kMaxItems);
    for (auto& warning : d.warnings) one_line(warning, kMost);
    if (d.warnings.size() > kMaxItems) d.warnings.resize(kMaxItems);
    out.push_back(std::move(d));
  }
  if (out.empty()) return Status::not_found("has no text");
  if (out.size() > request.limits.documents)
    return Status::exhausted("holds more than " + std::to_string(request.limits.documents) +
                             " documents; split it");
  return out;
}

}  // namespace quire
