#include "server/http/entity_tags.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Tags = std::vector<std::string>;

TEST(EntityTags, ListsOfStrongAndWeakTags) {
  auto t = parse_entity_tags(R"("a", W/"b" ,"c,d")");
  ASSERT_TRUE(t);
  EXPECT_FALSE(t->any);
  EXPECT_EQ(t->strong, (Tags{"a", "c,d"}));
  EXPECT_EQ(t->weak, Tags{"b"});
  t = parse_entity_tags(" * ");
  ASSERT_TRUE(t);
  EXPECT_TRUE(t->any);
  t = parse_entity_tags("sha256:00, \"*\"");
  ASSERT_TRUE(t);
  EXPECT_FALSE(t->any) << "a star in quotes is a tag";
  EXPECT_EQ(t->strong, (Tags{"sha256:00", "*"}));
}

TEST(EntityTags, MalformedListsAreRefused) {
  for (const char* text :
       {"", " ", ",", "\"a", "\"a\" \"b\"", "W/\"a", "*, \"a\"", "\"a\"b", "a\"b"})
    EXPECT_FALSE(parse_entity_tags(text)) << text;
}

TEST(EntityTags, FieldsOfOneNameAreOneList) {
  Headers h;
  EXPECT_FALSE(joined_fields(h, "If-Match"));
  h.add("If-Match", "\"a\"");
  h.add("Accept", "x");
  h.add("if-match", "\"b\"");
  EXPECT_EQ(joined_fields(h, "If-Match"), "\"a\", \"b\"");
}

}  // namespace
}  // namespace quire
