#include "server/json/metadata_filter.h"

#include <gtest/gtest.h>

#include <boost/json/value.hpp>

#include "base/json_parse.h"

namespace quire {
namespace {

MetadataFilter read(const std::string& filter) {
  const auto body = parse_json(R"({"metadata":)" + filter + "}");
  JsonReader r(*body, "");
  MetadataFilter out;
  read_metadata_filter(r, "metadata", out);
  EXPECT_FALSE(r.error()) << filter << ": " << r.error()->message;
  return out;
}

MetadataFilter from_text(const std::vector<std::pair<std::string, std::string>>& conditions) {
  MetadataFilter out;
  for (const auto& [name, value] : conditions) {
    const auto e = read_metadata_condition(name, value, "metadata." + name, out);
    EXPECT_FALSE(e) << e->message;
  }
  return out;
}

TEST(MetadataFilter, JsonAndTextSayTheSame) {
  EXPECT_EQ(read(R"({"a":"x","b":2})"), from_text({{"a", "x"}, {"b", "2"}}));
  EXPECT_EQ(read(R"({"a":["x",2,null]})"), from_text({{"a[in]", "x,2,null"}}));
  EXPECT_EQ(read(R"({"a":{"in":["x","y"],"not":"z"}})"),
            from_text({{"a[in]", "x,y"}, {"a[not]", "z"}}));
  EXPECT_EQ(read(R"({"y":{"gte":"2020","lt":"2025","exists":true}})"),
            from_text({{"y[gte]", "2020"}, {"y[lt]", "2025"}, {"y[exists]", "true"}}));
  EXPECT_EQ(read(R"({"y":{"gt":1.5,"lte":3}})").at(0).above, "1.5E0");
}

TEST(MetadataFilter, ABoundThatIsANumberLeavesTextOut) {
  const MetadataFilter number = read(R"({"y":{"gte":5}})"), text = read(R"({"y":{"gte":"5"}})");
  EXPECT_TRUE(metadata_matches(R"({"y":7})", number));
  EXPECT_TRUE(metadata_matches(R"({"y":["7",7]})", number));
  EXPECT_FALSE(metadata_matches(R"({"y":"7"})", number));
  EXPECT_TRUE(metadata_matches(R"({"y":7})", text));
  EXPECT_TRUE(metadata_matches(R"({"y":"7"})", text));
  EXPECT_FALSE(metadata_matches(R"({"y":"10"})", text)) << "text compares as text";
}

TEST(MetadataFilter, NullIsAValue) {
  EXPECT_EQ(read(R"({"a":null})"), (MetadataFilter{{"a", "null"}}));
  EXPECT_EQ(read(R"({"a":{"not":null}})").at(0).none_of, std::vector<std::string>{"null"});
}

TEST(MetadataFilter, TwoValuesOfOneKeyMustBothHold) {
  const MetadataFilter both = from_text({{"tag", "a"}, {"tag", "b"}});
  EXPECT_TRUE(metadata_matches(R"({"tag":["a","b"]})", both));
  EXPECT_FALSE(metadata_matches(R"({"tag":["a"]})", both));
}

TEST(MetadataFilter, UnknownOperatorsAreNamed) {
  MetadataFilter out;
  auto e = read_metadata_condition("y[ge]", "1", "metadata.y[ge]", out);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->path, "metadata.y[ge]");
  EXPECT_NE(e->message.find("'ge'"), std::string::npos) << e->message;
  e = read_metadata_condition("y[exists]", "yes", "metadata.y[exists]", out);
  ASSERT_TRUE(e);
  EXPECT_NE(e->message.find("true or false"), std::string::npos) << e->message;
}

}  // namespace
}  // namespace quire
