// The affinity of a set of documents is the one of the shared table, which the Python client has
// too.
#include "server/support/affinity.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "base/json_parse.h"

namespace quire {
namespace {

TEST(Affinity, IsThatOfTheSharedTable) {
  std::ifstream in(QUIRE_SOURCE_DIR "/tests/data/affinity.json");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const auto table = parse_json(text);
  ASSERT_TRUE(table.ok()) << table.status().message();
  // Other sets have another affinity, the same set in another order has the same.
  std::map<std::string, std::set<std::string>> sets;
  std::size_t rows = 0;
  for (const auto& row : table->as_array()) {
    const auto& o = row.as_object();
    const std::string ns(o.at("namespace").as_string());
    std::vector<std::string> ids;
    for (const auto& id : o.at("document_ids").as_array()) ids.emplace_back(id.as_string());
    const std::string affinity = affinity_of(ns, ids);
    EXPECT_EQ(affinity, std::string(o.at("affinity").as_string())) << ns;
    std::string set = ns;
    for (const auto& id : std::set<std::string>(ids.begin(), ids.end())) set += "\n" + id;
    sets[affinity].insert(set);
    ++rows;
  }
  EXPECT_GE(rows, 20u);
  for (const auto& [affinity, of] : sets) EXPECT_EQ(of.size(), 1u) << affinity;
}

TEST(Affinity, IsThatOfTheShellCommandInTheDocumentation) {
  // printf 'default\0a\0b' | sha256sum | cut -c1-16
  const std::vector<std::string> ids{"b", "a"};
  EXPECT_EQ(affinity_of("default", ids), "0badea7b848fbfe1");
}

TEST(Affinity, WithoutDocumentsThereIsNone) { EXPECT_EQ(affinity_of("default", {}), ""); }

}  // namespace
}  // namespace quire
