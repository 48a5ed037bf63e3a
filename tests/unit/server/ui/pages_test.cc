#include "server/ui/pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>

namespace quire {
namespace {

/// Returns the addresses that a script imports.
std::vector<std::string> imports_of(const std::string& text) {
  static const std::regex import("from '([^']*)'");
  std::vector<std::string> out;
  for (auto at = std::sregex_iterator(text.begin(), text.end(), import);
       at != std::sregex_iterator(); ++at)
    out.push_back((*at)[1]);
  return out;
}

TEST(Pages, EveryFileThatThePageNamesIsThere) {
  const Page* index = find_page("index.html");
  ASSERT_TRUE(index);
  static const std::regex named("\"ui/([^/\"]*)/([^\"]*)\"");
  int found = 0;
  for (auto at = std::sregex_iterator(index->text.begin(), index->text.end(), named);
       at != std::sregex_iterator(); ++at) {
    EXPECT_EQ((*at)[1].str(), ui_version());
    EXPECT_TRUE(find_page((*at)[2].str())) << (*at)[2];
    ++found;
  }
  EXPECT_GE(found, 3);
  for (const UiFile& f : ui_files()) {
    if (!f.name.ends_with(".js")) continue;
    for (const std::string& file : imports_of(find_page(f.name)->text)) {
      EXPECT_TRUE(file.starts_with("./")) << f.name << " imports " << file;
      EXPECT_TRUE(find_page(file.substr(std::min<std::size_t>(2, file.size()))))
          << f.name << " imports " << file;
    }
  }
}

// The policy of the page forbids what is inline, and values from documents must stay text.
TEST(Pages, NothingIsInlineForeignOrParsedAsHtml) {
  for (const UiFile& f : ui_files()) {
    const std::string text(f.text);
    for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "<style", " style=\"", " onclick=\"", "javascript:"})
      EXPECT_EQ(text.find(word), std::string::npos) << f.name << " has " << word;
    // The one address is the name of the SVG namespace, which nobody fetches.
    static const std::regex address("https?://[^\\s\"'`)]*");
    for (auto at = std::sregex_iterator(text.begin(), text.end(), address);
         at != std::sregex_iterator(); ++at)
      EXPECT_EQ(at->str(), "http://www.w3.org/2000/svg") << f.name;
    const auto lines = std::count(text.begin(), text.end(), '\n');
    EXPECT_LE(lines, 400) << f.name << " is too long: make two of it";
  }
}

TEST(Pages, EncodingsHaveTagsOfTheirOwn) {
  for (const UiFile& f : ui_files()) {
    const Page* page = find_page(f.name);
    ASSERT_TRUE(page) << f.name;
    EXPECT_NE(page->etag, page->gzip_etag);
    EXPECT_LT(page->gzip.size(), page->text.size()) << f.name;
    EXPECT_EQ(page->text.find("@VERSION@"), std::string::npos);
  }
  EXPECT_FALSE(find_page("../pages.cc"));
  EXPECT_FALSE(find_page(""));
}

}  // namespace
}  // namespace quire
