/// Small files of many formats, made in memory.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <string>
#include <utility>
#include <vector>

namespace quire::testing {

/// A zip archive of these entries, in order.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::size_t total = 4096;
  for (const auto& [name, content] : entries) total += content.size() + 2 * name.size() + 512;
  std::string out(total, '\0');
  std::size_t used = 0;
  archive* a = archive_write_new();
  archive_write_set_format_zip(a);
  archive_write_open_memory(a, out.data(), out.size(), &used);
  for (const auto& [name, content] : entries) {
    archive_entry* entry = archive_entry_new();
    archive_entry_set_pathname(entry, name.c_str());
    archive_entry_set_size(entry, static_cast<la_int64_t>(content.size()));
    archive_entry_set_filetype(entry, AE_IFREG);
    archive_entry_set_perm(entry, 0644);
    archive_write_header(a, entry);
    archive_write_data(a, content.data(), content.size());
    archive_entry_free(entry);
  }
  archive_write_free(a);  // closes it, which sets `used`
  out.resize(used);
  return out;
}

/// A Word document of this body.
inline std::string docx_of(const std::string& body) {
  const std::string ns =
      R"(xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main")";
  return zip_of(
      {{"[Content_Types].xml", "<Types/>"},
       {"word/document.xml", "<w:document " + ns + "><w:body>" + body + "</w:body></w:document>"},
       {"word/styles.xml",
        "<w:styles " + ns +
            R"(><w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>)"
            "</w:styles>"},
       {"docProps/core.xml",
        R"(<p xmlns:dc="d"><dc:title>The title</dc:title><dc:creator>Ada</dc:creator></p>)"}});
}

/// An EPUB of these chapters.
inline std::string epub_of(const std::vector<std::string>& chapters) {
  std::string manifest, spine;
  std::vector<std::pair<std::string, std::string>> entries = {
      {"mimetype", "application/epub+zip"},
      {"META-INF/container.xml",
       R"(<c><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></c>)"}};
  for (std::size_t i = 0; i < chapters.size(); ++i) {
    const std::string n = std::to_string(i);
    manifest += "<item id=\"c" + n + "\" href=\"text/c%20" + n + ".xhtml\"/>";
    spine += "<itemref idref=\"c" + n + "\"/>";
    entries.emplace_back("OEBPS/text/c " + n + ".xhtml", chapters[i]);
  }
  entries.emplace_back("OEBPS/book.opf",
                       "<package xmlns:dc=\"d\"><metadata><dc:title>Book</dc:title></metadata>"
                       "<manifest>" +
                           manifest + "</manifest><spine>" + spine + "</spine></package>");
  return zip_of(entries);
}

/// A PDF with a line of text on each page, and an outline with the given titles.
inline std::string pdf_of(const std::vector<std::string>& pages,
                          const std::vector<std::string>& outline = {}) {
  const auto ref = [](std::size_t n) { return std::to_string(n) + " 0 R"; };
  const std::size_t first_page = 4, first_item = first_page + 2 * pages.size() + 1;
  std::string kids;
  for (std::size_t i = 0; i < pages.size(); ++i) kids += ref(first_page + 2 * i) + " ";
  std::vector<std::string> objects = {
      "<< /Type /Catalog /Pages 2 0 R" +
          (outline.empty() ? "" : " /Outlines " + ref(first_item - 1)) + " >>",
      "<< /Type /Pages /Kids [" + kids + "] /Count " + std::to_string(pages.size()) + " >>",
      "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"};
  for (std::size_t i = 0; i < pages.size(); ++i) {
    std::string lines;
    for (std::size_t begin = 0; begin <= pages[i].size();) {
      const auto end = std::min(pages[i].find('\n', begin), pages[i].size());
      lines += "(" + pages[i].substr(begin, end - begin) + ") Tj T* ";
      begin = end + 1;
    }
    const std::string stream = "BT /F1 11 Tf 14 TL 50 780 Td " + lines + "ET";
    objects.push_back("<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents " +
                      ref(first_page + 2 * i + 1) + " /Resources << /Font << /F1 3 0 R >> >> >>");
    objects.push_back("<< /Length " + std::to_string(stream.size()) + " >>\nstream\n" + stream +
                      "\nendstream");
  }
  if (!outline.empty()) {
    objects.push_back("<< /Type /Outlines /First " + ref(first_item) + " /Last " +
                      ref(first_item + outline.size() - 1) + " >>");
    for (std::size_t i = 0; i < outline.size(); ++i)
      objects.push_back("<< /Title (" + outline[i] + ") /Parent " + ref(first_item - 1) +
                        " /Dest [4 0 R /Fit]" +
                        (i + 1 < outline.size() ? " /Next " + ref(first_item + i + 1) : "") +
                        (i > 0 ? " /Prev " + ref(first_item + i - 1) : "") + " >>");
  }
  std::string out = "%PDF-1.4\n", table;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    std::string at = std::to_string(out.size());
    table += std::string(10 - at.size(), '0') + at + " 00000 n \n";
    out += std::to_string(i + 1) + " 0 obj\n" + objects[i] + "\nendobj\n";
  }
  const std::string count = std::to_string(objects.size() + 1);
  const std::string start = std::to_string(out.size());
  return out + "xref\n0 " + count + "\n0000000000 65535 f \n" + table + "trailer << /Size " +
         count + " /Root 1 0 R >>\nstartxref\n" + start + "\n%%EOF\n";
}

}  // namespace quire::testing
