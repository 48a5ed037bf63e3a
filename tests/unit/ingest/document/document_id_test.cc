// The ids of files: readable, never shared by two paths, and the same as the Python client's.
#include "ingest/document/document_id.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <fstream>
#include <iterator>
#include <map>

#include "base/index.h"
#include "base/json_parse.h"

namespace quire {
namespace {

std::string from_hex(std::string_view hex) {
  std::string out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

TEST(DocumentId, FilesGetTheIdsOfTheSharedTable) {
  std::ifstream in(QUIRE_SOURCE_DIR "/tests/data/document_ids.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto table = parse_json(text);
  ASSERT_TRUE(table.ok()) << table.status().message();
  std::map<std::string, std::string> path_of;
  for (const auto& row : table->as_array()) {
    const auto& o = row.as_object();
    const std::string path = o.contains("path") ? std::string(o.at("path").as_string())
                                                : from_hex(o.at("path_hex").as_string());
    const std::string id = document_id_of_path(path);
    EXPECT_EQ(id, std::string(o.at("id").as_string())) << path;
    EXPECT_TRUE(is_document_id(id)) << id;
    EXPECT_TRUE(path_of.emplace(id, path).second) << path << " and " << path_of[id];
  }
  EXPECT_GT(path_of.size(), 30u);
}

TEST(DocumentId, OnlyAChangedPathGetsADigest) {
  EXPECT_EQ(document_id_of_path("sub/policy 83.html").rfind("sub:policy-83.html~", 0), 0u);
  EXPECT_EQ(document_id_of_path("sub/policy-83.html"), "sub:policy-83.html");
}

TEST(DocumentId, LettersOfAnyScriptAreAllowedAndControlCharactersAreNot) {
  for (const std::string id : {"a", "7", "报告.txt", "Käse~1a2b3c4d", "a:b_c-d.e", "हिन्दी"})
    EXPECT_TRUE(is_document_id(id)) << id;
  for (const std::string id : {"", ".a", "~a", ":a", "a b", "a/b", "a\nb", "\xff", "a\xc3", "😀"})
    EXPECT_FALSE(is_document_id(id)) << id;
  EXPECT_TRUE(is_document_id(std::string(200, 'x')));
  EXPECT_FALSE(is_document_id(std::string(201, 'x')));
}

}  // namespace
}  // namespace quire
