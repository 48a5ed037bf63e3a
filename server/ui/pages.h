/// The files of the web page, which are part of the binary.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// UiFile is one file of server/ui as CMake put it into the binary.
struct UiFile {
  std::string_view name, text;
};

/// Returns all files; defined by generated code (cmake/embed_texts.cmake).
const std::vector<UiFile>& ui_files();

/// Page is a file as it is served.
struct Page {
  std::string content_type;
  std::string text, gzip;       ///< the body as it is, and compressed
  std::string etag, gzip_etag;  ///< without quotes; each encoding has its own
};

/// Returns the file of that name; null: there is none. "index.html" is the page itself. It names
/// its scripts and styles by a path that contains ui_version(), so that browsers may keep them.
/// Threads: any.
const Page* find_page(std::string_view name);

/// Returns a digest of all files, which changes with any of them.
std::string_view ui_version();

}  // namespace quire
