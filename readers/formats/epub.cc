#include <map>

#include "base/index.h"
#include "readers/formats/document_builder.h"
#include "readers/formats/format.h"
#include "readers/formats/html.h"
#include "readers/formats/office_parts.h"
#include "readers/formats/text_encoding.h"
#include "readers/formats/xml_text.h"
#include "readers/formats/zip_file.h"

namespace quire {
namespace {

bool is_wanted(std::string_view name) {
  for (const std::string_view ending : {".xml", ".opf", ".xhtml", ".html", ".htm", ".XHTML"})
    if (name.ends_with(ending)) return true;
  return false;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/// Returns the text with characters that are written as %XX.
std::string unescaped(std::string_view href) {
  std::string out;
  for (std::size_t i = 0; i < href.size(); ++i) {
    if (href[i] == '%' && i + 2 < href.size() && hex_digit(href[i + 1]) >= 0 &&
        hex_digit(href[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(href[i + 1]) * 16 + hex_digit(href[i + 2]));
      i += 2;
    } else {
      out += href[i];
    }
  }
  return out;
}

}  // namespace

Result<std::vector<ReadDocument>> read_epub(std::string_view bytes, const ReaderRequest&) {
  QUIRE_ASSIGN_OR_RETURN(const auto entries, unzip(bytes, &is_wanted));
  pugi::xml_document container, package;
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, "META-INF/container.xml", container));
  const auto root = container.find_node(
      [](const pugi::xml_node& node) { return local_name(node) == "rootfile"; });
  const std::string opf(local_attribute(root, "full-path"));
  QUIRE_RETURN_IF_ERROR(parse_entry(entries, opf, package));
  const auto book = package.document_element();

  std::map<std::string, std::string, std::less<>> files;
  for (const auto& item : local_child(book, "manifest").children()) {
    const std::string_view href = local_attribute(item, "href");
    files[std::string(local_attribute(item, "id"))] = entry_at(
        opf, unescaped(href.substr(0, href.find('#'))));
  }
  const auto locks = entries.find("META-INF/encryption.xml");
  DocumentBuilder builder;
  std::vector<std::string> warnings;
  for (const auto& item : local_child(book, "spine").children()) {
    const auto file = files.find(local_attribute(item, "idref"));
    if (file == files.end()) continue;
    const auto entry = entries.find(file->second);
    if (entry == entries.end()) {
      warnings.push_back(file->second + " is missing");
      continue;
    }
    // Fonts may be encrypted in any book; chapters are so only where the book is protected.
    if (locks != entries.end() && locks->second.find(file->second) != std::string::npos)
      return Status::precondition("is protected against copying; its text cannot be read");
    const auto decoded = decode_text(entry->second, {}, declared_html_encoding(entry->second));
    if (!decoded.ok()) {
      warnings.push_back(file->second + ": " + decoded.status().message());
      continue;
    }
    const auto chapter = document_of_html(decoded->text);
    if (chapter.ok())
      builder.append(*chapter);
    else if (!squeezed(decoded->text).empty())
      warnings.push_back(file->second + " " + chapter.status().message());
  }
  ReadDocument out = builder.finish();
  out.warnings = std::move(warnings);
  const auto about = local_child(book, "metadata");
  out.title = text_of_first(about, "title");
  out.metadata.emplace_back("author", text_of_first(about, "creator"));
  out.metadata.emplace_back("language", text_of_first(about, "language"));
  return std::vector<ReadDocument>{std::move(out)};
}

}  // namespace quire
