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

TEST(MetadataTest, WhatMatchesHasATermOfTheFilter) {
  const std::vector<std::string> values = {"1",        "1.0",
                                           "\"1\"",    "true",
                                           "\"true\"", "null",
                                           "\"\"",     "0.25",
                                           "-0.0",     "1e3",
                                           "[1]",      "{}",
                                           "\"1e3\"",  "123456789012345678901234567890"},
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
          const auto of_filter = filter_terms(other, text);
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
