#include "server/json/text.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

namespace quire {
namespace {

namespace json = boost::json;

TEST(ToText, WritesCompactJsonWithPlainDecimals) {
  const json::object o = {{"a", json::array{1, -2, 0.5, 3.0, "ü", true, nullptr}},
                          {"b", json::object()}};
  EXPECT_EQ(to_text(o), R"({"a":[1,-2,0.5,3.0,"ü",true,null],"b":{}})");
}

TEST(Rfc3339, ComesBack) {
  EXPECT_EQ(rfc3339(1740823500123), "2025-03-01T10:05:00.123Z");
  EXPECT_EQ(*parse_rfc3339("2025-03-01T10:05:00.123Z"), 1740823500123);
  EXPECT_EQ(*parse_rfc3339("2025-03-01T12:05:00+02:00"), 1740823500000);
  for (const auto* bad : {"", "2025-03-01", "2025-13-01T00:00:00Z", "2025-03-01T10:05:00",
                          "2025-03-01T10:05:00Zx", "x"})
    EXPECT_FALSE(parse_rfc3339(bad).ok()) << bad;
}

TEST(LostText, SaysHowManyAndOfWhen) {
  LostWrites lost;
  EXPECT_EQ(lost_text(lost), "");
  lost.add({.count = 2, .torn = 2});
  EXPECT_EQ(lost_text(lost),
            "2 writes in the torn end of the log; a power failure tears only writes that were not "
            "acknowledged");
  const LostWrites known{.count = 5, .first_ms = 1740823500123, .last_ms = 1740823501000};
  EXPECT_EQ(lost_text(known),
            "5 acknowledged writes, from 2025-03-01T10:05:00.123Z to 2025-03-01T10:05:01.000Z");
  lost.add(known);
  EXPECT_EQ(lost_text(lost),
            "7 writes: 5 acknowledged ones, from 2025-03-01T10:05:00.123Z to "
            "2025-03-01T10:05:01.000Z, and 2 in the torn end of the log; a power failure tears "
            "only writes that were not acknowledged");
  lost.at_least = lost.note_damaged = true;
  EXPECT_EQ(lost_text(lost),
            "at least 7 writes; LOST_WRITES in the store's folder counted them and is damaged");
}

}  // namespace
}  // namespace quire
