#include "readers/pdf/pdf_reader.h"

#include <poppler-document.h>
#include <poppler-global.h>
#include <poppler-page.h>
#include <poppler-toc.h>

#include <climits>
#include <memory>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"

namespace quire {
namespace {

constexpr std::size_t kMaxSections = 20'000;

std::string utf8(const poppler::ustring& text) {
  const auto bytes = text.to_utf8();
  return {bytes.data(), bytes.size()};
}

struct Section {
  int level;
  std::string title;
};

void collect(const poppler::toc_item& item, int level, std::vector<Section>& out) {
  for (const poppler::toc_item* child : item.children()) {
    if (out.size() >= kMaxSections || level > 9) return;
    if (auto title = squeezed(utf8(child->title())); !title.empty())
      out.push_back({level, std::move(title)});
    collect(*child, level + 1, out);
  }
}

/// Joins words that were hyphenated at the end of a line, and takes page ends away.
std::string tidy(std::string_view page) {
  const auto is_lower = [](char c) {
    return (c >= 'a' && c <= 'z') || static_cast<unsigned char>(c) >= 0xC3;
  };
  std::string out;
  for (std::size_t i = 0; i < page.size(); ++i) {
    const char c = page[i];
    if (c == '\f' || c == '\0' || c == '\r') continue;
    if (c == '-' && i > 0 && is_lower(page[i - 1]) && i + 2 < page.size() && page[i + 1] == '\n' &&
        page[i + 2] >= 'a' && page[i + 2] <= 'z') {
      ++i;
      continue;
    }
    out += c;
  }
  return out;
}

/// Finds in order which line of which page begins a section of the outline.
class SectionFinder {
 public:
  explicit SectionFinder(std::vector<Section> sections) : sections_(std::move(sections)) {}

  /// Adds the marks of a page that begins at `base` of the text.
  void page(std::string_view text, std::uint64_t base, std::uint32_t number,
            std::vector<TextMark>& out) {
    out.push_back({base, number, path_.path()});
    // A table of contents repeats all titles; its lines lead to a page number.
    for (std::size_t begin = 0; begin < text.size() && next_ < sections_.size();) {
      const auto end = std::min(text.find('\n', begin), text.size());
      const std::string line = squeezed(text.substr(begin, end - begin));
      // A few sections may have titles that their pages write otherwise.
      for (std::size_t i = next_; !line.empty() && i < std::min(next_ + 4, sections_.size()); ++i) {
        if (!same(line, sections_[i].title)) continue;
        for (; next_ <= i; ++next_) path_.open(sections_[next_].level, sections_[next_].title);
        TextMark mark{base + begin, number, path_.path()};
        if (out.back().offset == mark.offset)
          out.back() = std::move(mark);
        else
          out.push_back(std::move(mark));
        break;
      }
      begin = end + 1;
    }
  }

 private:
  /// "2.1 Safety" on the page and "Safety" in the outline are the same title.
  static bool same(std::string_view line, std::string_view title) {
    const auto bare = [](std::string_view text) {
      const auto at = text.find_first_not_of("0123456789. ");
      return at == std::string_view::npos ? text : text.substr(at);
    };
    return line == title || (!bare(line).empty() && bare(line) == bare(title));
  }

  const std::vector<Section> sections_;
  std::size_t next_ = 0;
  HeadingPath path_;
};

}  // namespace

Result<std::vector<ReadDocument>> read_pdf_pages(std::string_view bytes,
                                                 const ReaderRequest& request) {
  poppler::set_debug_error_function([](const std::string&, void*) {}, nullptr);
  if (bytes.size() > INT_MAX) return Status::exhausted("is larger than 2 GiB; split it");
  // Bytes before "%PDF-" are no part of it.
  const auto begin = bytes.substr(0, 1024).find("%PDF-");
  if (begin == std::string_view::npos) return Status::invalid("", "is not a PDF");
  bytes.remove_prefix(begin);
  const std::unique_ptr<poppler::document> pdf(
      poppler::document::load_from_raw_data(bytes.data(), static_cast<int>(bytes.size())));
  if (!pdf) return Status::invalid("", "is damaged: Poppler cannot open the PDF");
  if (pdf->is_locked())
    return Status::precondition(
        "is password-protected; save it without a password, for example with 'qpdf --decrypt'");
  std::vector<Section> sections;
  if (const std::unique_ptr<poppler::toc> toc(pdf->create_toc()); toc)
    collect(*toc->root(), 1, sections);
  SectionFinder finder(std::move(sections));

  ReadDocument out;
  const int pages = pdf->pages();
  int empty = 0, broken = 0;
  for (int i = 0; i < pages; ++i) {
    const std::unique_ptr<poppler::page> page(pdf->create_page(i));
    if (!page) {
      ++broken;
      continue;
    }
    std::string text = tidy(utf8(page->text(
        poppler::rectf(), poppler::page::text_layout_enum::non_raw_non_physical_layout)));
    while (text.ends_with('\n') || text.ends_with(' ')) text.pop_back();
    if (text.find_first_not_of(" \n\t") == std::string::npos) {
      ++empty;
      continue;
    }
    if (!out.text.empty()) out.text += "\n\n";
    finder.page(text, out.text.size(), static_cast<std::uint32_t>(i + 1), out.marks);
    out.text += text;
    if (out.text.size() > request.limits.text_bytes) break;  // finish_documents() refuses it
  }
  if (pages <= 0) return Status::invalid("", "is damaged: the PDF has no pages");
  if (out.text.empty())
    return Status::invalid("", "has " + std::to_string(pages) + (pages == 1 ? " page" : " pages") +
                                   " and no text, so it is probably scanned; make it text first, "
                                   "for example with 'ocrmypdf'");
  out.text += '\n';
  if (empty > 0)
    out.warnings.push_back(std::to_string(empty) + " of " + std::to_string(pages) +
                           " pages have no text");
  if (broken > 0)
    out.warnings.push_back(std::to_string(broken) + " of " + std::to_string(pages) +
                           " pages are damaged");
  out.title = utf8(pdf->info_key("Title"));
  out.metadata.emplace_back("author", squeezed(utf8(pdf->info_key("Author"))));
  out.metadata.emplace_back("pages", std::to_string(pages));
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
