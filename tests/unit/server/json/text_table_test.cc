#include "server/json/text_table.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>

namespace quire {
namespace {

std::string table(const char* text) { return text_table(boost::json::parse(text).as_object()); }

TEST(TextTable, MembersAreAlignedAndBytesHaveUnits) {
  EXPECT_EQ(table(R"({"object":"x","bytes":1536,"documents":{"ready":2,"failed":0},
                      "ratio":0.5,"disk_bytes":123456789012,"none":null,"list":[1,2],"on":true})"),
            "bytes             1.5 KiB\n"
            "documents.ready   2\n"
            "documents.failed  0\n"
            "ratio             0.5\n"
            "disk_bytes        115 GiB\n"
            "none              -\n"
            "list              1, 2\n"
            "on                true\n");
}

TEST(TextTable, ListsOfObjectsAreTables) {
  EXPECT_EQ(table(R"({"up":3,"tiers":[{"name":"dram","bytes":1023,"x":{"y":1}},
                      {"name":"d\u00efsk","bytes":0,"more":[{"a":1}]}]})"),
            "up  3\n"
            "\n"
            "tiers\n"
            "  name bytes  x.y more\n"
            "  dram 1023 B 1   -\n"
            "  d\u00efsk 0 B    -   1 of them\n");
}

TEST(TextTable, AnEmptyListSaysSo) {
  EXPECT_EQ(table(R"({"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false})"),
            "data  none\n");
  EXPECT_EQ(table("{}"), "nothing\n");
}

}  // namespace
}  // namespace quire
