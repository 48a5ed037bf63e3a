#include "server/ui/pages.h"

#include <map>

#include "base/sha256.h"
#include "server/http/gzip_writer.h"

namespace quire {
namespace {

/// What stands in index.html for the version.
constexpr std::string_view kVersionMark = "@VERSION@";
constexpr std::size_t kDigits = 16;  // of digests in addresses and tags

std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

struct Site {
  std::string version;
  std::map<std::string, Page, std::less<>> pages;
};

Site make_site() {
  Site site;
  std::string all;
  for (const UiFile& f : ui_files()) all.append(f.name).append("\n").append(f.text).append("\n");
  site.version = sha256(all).hex().substr(0, kDigits);
  for (const UiFile& f : ui_files()) {
    Page page;
    page.content_type = content_type(f.name);
    page.text = f.text;
    for (auto at = page.text.find(kVersionMark); at != std::string::npos;
         at = page.text.find(kVersionMark, at))
      page.text.replace(at, kVersionMark.size(), site.version);
    page.gzip = gzip_of(page.text);
    page.etag = sha256(page.text).hex().substr(0, kDigits);
    page.gzip_etag = page.etag + "-gzip";
    site.pages.emplace(f.name, std::move(page));
  }
  return site;
}

const Site& site() {
  static const Site made = make_site();
  return made;
}

}  // namespace

const Page* find_page(std::string_view name) {
  const auto found = site().pages.find(name);
  return found == site().pages.end() ? nullptr : &found->second;
}

std::string_view ui_version() { return site().version; }

}  // namespace quire
