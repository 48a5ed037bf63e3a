#include "cachestore/format/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

TEST(MetadataTest, ComparesScalarsAsText) {
  const std::string m = R"({"s":"abc","i":2025,"d":0.5,"t":true,"n":null,"o":{}})";
  EXPECT_TRUE(metadata_matches(
      m, {{"s", "abc"}, {"i", "2025"}, {"d", "0.5"}, {"t", "true"}, {"n", "null"}}));
  EXPECT_FALSE(metadata_matches(m, {{"s", "abd"}}));
  EXPECT_FALSE(metadata_matches(m, {{"o", "{}"}}));
  EXPECT_FALSE(metadata_matches(m, {{"missing", ""}}));
}

TEST(MetadataTest, ComparesNumbersAsNumbers) {
  for (const char* text : {"0.5", "5e-1", "0.50", "5E-1"}) {
    EXPECT_TRUE(metadata_matches(R"({"d":0.5})", {{"d", text}})) << text;
    EXPECT_FALSE(metadata_matches(R"({"d":"0.5"})", {{"d", text}}) && text != std::string("0.5"));
  }
  EXPECT_TRUE(metadata_matches(R"({"d":-0.0})", {{"d", "0"}}));
  EXPECT_FALSE(metadata_matches("not JSON", {{"d", "0"}}));
  EXPECT_FALSE(metadata_matches("[1]", {{"d", "0"}}));
  EXPECT_TRUE(metadata_matches("", {}));
}

MetadataCondition on(const std::string& key) {
  MetadataCondition c;
  c.key = key;
  return c;
}

TEST(MetadataTest, LargeIntegersAreNotTheirNeighbours) {
  const std::string odd =
      R"({"id":9007199254740993,"big":18446744073709551615,"low":-9007199254740993})";
  EXPECT_TRUE(metadata_matches(odd, {{"id", "9007199254740993"}}));
  EXPECT_FALSE(metadata_matches(odd, {{"id", "9007199254740992"}}));
  EXPECT_FALSE(metadata_matches(odd, {{"id", "9007199254740994"}}));
  EXPECT_FALSE(metadata_matches(odd, {{"big", "18446744073709551614"}}));
  EXPECT_FALSE(metadata_matches(odd, {{"low", "-9007199254740992"}}));
  EXPECT_TRUE(metadata_matches(R"({"id":4.0})", {{"id", "4"}}));
  MetadataCondition above, at_most;
  above.key = at_most.key = "id";
  above.above = at_most.at_most = "9007199254740992";
  EXPECT_TRUE(metadata_matches(odd, {above}));
  EXPECT_FALSE(metadata_matches(odd, {at_most}));
}

TEST(MetadataTest, BoundsCompareNumbersAndText) {
  const std::string m = R"({"n":2024.5,"d":"2024-03-01","b":true,"a":[1,9],"z":null})";
  const auto passes = [&](const char* key, const char* above, const char* at_least,
                          const char* below, const char* at_most) {
    MetadataCondition c = on(key);
    if (above) c.above = above;
    if (at_least) c.at_least = at_least;
    if (below) c.below = below;
    if (at_most) c.at_most = at_most;
    return metadata_matches(m, {c});
  };
  EXPECT_TRUE(passes("n", "2024", nullptr, "2025", nullptr));
  EXPECT_TRUE(passes("n", nullptr, "2024.5", nullptr, "2.0245e3"));
  EXPECT_FALSE(passes("n", "2024.5", nullptr, nullptr, nullptr));
  EXPECT_FALSE(passes("n", nullptr, nullptr, "2024.5", nullptr));
  EXPECT_FALSE(passes("n", "0x", nullptr, nullptr, nullptr)) << "no number";
  EXPECT_TRUE(passes("d", nullptr, "2024-02-29", "2024-12", nullptr));
  EXPECT_FALSE(passes("d", "2024-03-01", nullptr, nullptr, nullptr));
  EXPECT_FALSE(passes("b", nullptr, "true", nullptr, nullptr));
  EXPECT_FALSE(passes("z", nullptr, nullptr, nullptr, "9"));
  EXPECT_FALSE(passes("missing", nullptr, nullptr, "9", nullptr));
  EXPECT_TRUE(passes("a", "8", nullptr, nullptr, nullptr)) << "one of an array is enough";
  EXPECT_FALSE(passes("a", "2", nullptr, "8", nullptr)) << "and it is one for all bounds";
}

TEST(MetadataTest, SeveralValuesAndTheirOpposite) {
  const std::string m = R"({"lang":"en","tags":["a","b",3],"z":null})";
  const auto any = [&](const char* key, std::vector<std::string> values) {
    MetadataCondition c = on(key);
    c.any_of = std::move(values);
    return metadata_matches(m, {c});
  };
  const auto none = [&](const char* key, std::vector<std::string> values) {
    MetadataCondition c = on(key);
    c.none_of = std::move(values);
    return metadata_matches(m, {c});
  };
  EXPECT_TRUE(any("lang", {"de", "en"}));
  EXPECT_FALSE(any("lang", {"de", "fr"}));
  EXPECT_TRUE(any("tags", {"x", "b"}));
  EXPECT_TRUE(any("tags", {"3.0"}));
  EXPECT_FALSE(any("tags", {"c"}));
  EXPECT_FALSE(none("lang", {"de", "en"}));
  EXPECT_TRUE(none("lang", {"de"}));
  EXPECT_FALSE(none("tags", {"a"}));
  EXPECT_TRUE(none("missing", {"a"}));
  MetadataCondition there = on("z");
  there.exists = true;
  EXPECT_FALSE(metadata_matches(m, {there})) << "null is nothing";
  there.exists = false;
  EXPECT_TRUE(metadata_matches(m, {there}));
  EXPECT_TRUE(filter_terms(there).empty());
}

TEST(MetadataTest, WhatMatchesHasATermOfTheFilter) {
  const std::vector<std::string>
      values = {"1",    "1.0",  "\"1\"",       "true",    "\"true\"",
                "null", "\"\"", "0.25",        "-0.0",    "1e3",
                "[1]",  "{}",   "[0.25,true]", "\"1e3\"", "123456789012345678901234567890"},
      wanted = {"1",
                "1.0",
                "true",
                "null",
                "",
                "0.25",
                "0",
                "-0",
                "1000",
                "1e3",
                "[1]",
                "{}",
                "123456789012345678901234567890"},
      keys = {"a", "", "a b"};
  int matches = 0;
  for (const std::string& key : keys) {
    for (const std::string& value : values) {
      DocumentManifest m;
      m.status = DocumentStatus::kReady;
      m.metadata_json = "{\"" + key + "\":" + value + "}";
      const auto terms = document_terms(m);
      EXPECT_TRUE(std::ranges::is_sorted(terms));
      EXPECT_TRUE(std::ranges::binary_search(terms, status_term(DocumentStatus::kReady)));
      EXPECT_FALSE(std::ranges::binary_search(terms, status_term(DocumentStatus::kFailed)));
      for (const std::string& other : keys) {
        for (const std::string& text : wanted) {
          const auto of_filter = filter_terms({other, text});
          const bool found = std::ranges::any_of(of_filter, [&](const std::string& term) {
            EXPECT_EQ(term.size(), kTermBytes);
            return std::ranges::binary_search(terms, term);
          });
          const bool match = metadata_matches(m.metadata_json, {{other, text}});
          EXPECT_EQ(found, match) << m.metadata_json << ' ' << other << ' ' << text;
          matches += match;
        }
      }
    }
  }
  EXPECT_GT(matches, 20);
}

}  // namespace
}  // namespace quire
