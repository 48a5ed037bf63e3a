#include "base/json_parse.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace quire {
namespace {

namespace json = boost::json;
using Kind = JsonTextError::Kind;

std::string message(std::string_view text, const JsonLimits& limits = {}) {
  const auto v = parse_json(text, limits);
  if (v.ok()) return "";
  EXPECT_EQ(v.code(), Code::kInvalidArgument);
  EXPECT_EQ(v.status().field(), "");
  return v.status().message();
}

TEST(ParseJson, ReadsWhatIsValid) {
  const auto v = parse_json(
      "\xEF\xBB\xBF {\"a\":[1,-2,3.5,\"\\u00fc\",true,null],\"b\":{}} \r\n\t");
  ASSERT_TRUE(v.ok()) << v.status().message();
  const json::value wanted = {{"a", {1, -2, 3.5, "ü", true, nullptr}}, {"b", json::object()}};
  EXPECT_EQ(*v, wanted);
  EXPECT_EQ(parse_json("18446744073709551615")->as_uint64(), UINT64_MAX);
  EXPECT_EQ(parse_json("\"x\"")->as_string(), "x");
}

TEST(ParseJson, RefusesWhatIsNot) {
  for (const auto* text :
       {"{", "{\"a\":}", "[1,]", "{'a':1}", "NaN", "[Infinity]", "1 2", "{\"a\":1}x", "// c\n1",
        "\"a\nb\"", "01", "{\"a\" 1}", "1e999", "-1e400", "\"\\ud800\"", "tru", "\"a"})
    EXPECT_NE(message(text), "") << text;
}

TEST(ParseJson, EveryRefusalHasItsKindAndPlace) {
  struct Case {
    std::string text;
    Kind kind;
    std::size_t byte;
  };
  const Case cases[] = {{"[\"a\xFF\"]", Kind::kUtf8, 3},
                        {"[\"\xED\xA0\x80\"]", Kind::kUtf8, 2},
                        {"", Kind::kEmpty, 0},
                        {" \n", Kind::kEmpty, 0},
                        {"\xEF\xBB\xBF", Kind::kEmpty, 0},
                        {"[1,", Kind::kUnfinished, 3},
                        {"{\"a", Kind::kUnfinished, 3},
                        {"[x]", Kind::kSyntax, 1},
                        {std::string(33, '['), Kind::kDepth, 32},
                        {"[] x", Kind::kTrailing, 3},
                        {"[]]", Kind::kTrailing, 2}};
  for (const auto& c : cases) {
    json::value out = 7;
    const auto error = parse_json(c.text, out);
    ASSERT_TRUE(error) << c.text;
    EXPECT_EQ(error->kind, c.kind) << c.text << ": " << error->reason;
    EXPECT_EQ(error->byte, c.byte) << c.text;
    EXPECT_NE(error->reason, "") << c.text;
    EXPECT_EQ(out, 7) << c.text;
  }
}

TEST(ParseJson, RefusesAKeyGivenTwiceAndNamesIt) {
  const std::string text = "{\"a\":1,\n\"b\":{\"c\":1,\"\\u0063\":2}}";
  EXPECT_EQ(message(text).find("the key \"c\" stands twice in one object (line 2, column "), 0u)
      << message(text);
  json::value out;
  const auto error = parse_json(text, out);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, Kind::kRepeatedKey);
  EXPECT_EQ(error->key, "c");
  EXPECT_NE(message(R"({"":1,"":2})"), "");
  EXPECT_EQ(message(R"([{"a":1},{"a":2},{"b":{"a":1}}])"), "");
}

TEST(ParseJson, TheLastOfRepeatedKeysStaysWhereTheyAreAllowed) {
  const auto v = parse_json(R"({"a":1,"b":{"a":2,"a":3},"a":4})", {.repeated_keys = true});
  ASSERT_TRUE(v.ok()) << v.status().message();
  EXPECT_EQ(v->at("a").as_int64(), 4);
  EXPECT_EQ(v->at("b").at("a").as_int64(), 3);
}

TEST(ParseJson, DepthIsBounded) {
  const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(message(nested(32)), "");
  EXPECT_NE(message(nested(33)).find("nested deeper than 32 levels"), std::string::npos);
  EXPECT_NE(message(nested(100000)), "");
  EXPECT_EQ(message(nested(64), {.max_depth = 64}), "");
  EXPECT_NE(message(nested(3), {.max_depth = 2}).find("2 levels"), std::string::npos);
}

TEST(ParseJson, MessagesSayWhere) {
  EXPECT_EQ(message("{\"a\": 1,\n  \"b\": x}").find("not valid JSON at line 2, column 8: "), 0u);
  EXPECT_EQ(message("[1]\n\n ]"), "more text after the JSON value at line 3, column 2");
  EXPECT_EQ(message(" "), "the JSON text is empty");
  EXPECT_EQ(message("\"\xC0\""), "the JSON text is not valid UTF-8 at byte 1; send UTF-8");
}

TEST(ParseJson, ValuesAreCountedBeforeTheyAreBuilt) {
  EXPECT_EQ(message(R"([1,"a",null,{"k":[]}])", {.max_values = 6}), "");
  EXPECT_NE(message(R"([1,"a",null,{"k":[]}])", {.max_values = 5}).find("more than the 5 values"),
            std::string::npos);
  std::string many = "[";
  for (int i = 0; i < 1000; ++i) many += "[],";
  json::value out;
  const auto error = parse_json(many, out, {.max_values = 10});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, Kind::kTooMany);
  EXPECT_LT(error->byte, 40u) << "it stops at the bound, before the text's end";
}

std::string object_of(int keys, const std::string& prefix = "k") {
  std::string text = "{";
  for (int i = 0; i < keys; ++i) text += (i ? ",\"" : "\"") + prefix + std::to_string(i) + "\":0";
  return text + "}";
}

TEST(ParseJson, KeysAreBounded) {
  EXPECT_EQ(message(object_of(5), {.max_object_keys = 5}), "");
  EXPECT_NE(message(object_of(6), {.max_object_keys = 5}).find("5 keys in one object"),
            std::string::npos);
  const std::string two = "[" + object_of(3) + "," + object_of(3) + "]";
  EXPECT_EQ(message(two, {.max_keys = 6}), "");
  EXPECT_NE(message(two, {.max_keys = 5}).find("5 keys that"), std::string::npos) << message(two);
  EXPECT_EQ(message(R"({"abc":1})", {.max_key_bytes = 3}), "");
  EXPECT_NE(message(R"({"abcd":1})", {.max_key_bytes = 3}).find("3 bytes in a key"),
            std::string::npos);
  EXPECT_NE(message(R"({"\u00fc\u00fc":1})", {.max_key_bytes = 3}), "");
  const auto two_of = [](std::size_t bytes) {
    return "{\"" + std::string(bytes, 'a') + "\":0,\"" + std::string(bytes, 'b') + "\":0}";
  };
  EXPECT_EQ(message(two_of(32), {.max_keys = 2}), "");
  EXPECT_NE(message(two_of(33), {.max_keys = 2}).find("64 bytes in keys"), std::string::npos);
}

TEST(ParseJson, OnlyKeysOfLargeObjectsCountAsSuch) {
  const int wide = static_cast<int>(kWideObjectKeys) + 1;
  const JsonLimits limits{.max_wide_keys = 2 * kWideObjectKeys + 2};
  std::string small = "[";
  for (int i = 0; i < 100; ++i) small += object_of(wide - 1) + ",";
  EXPECT_EQ(message(small + "0]", limits), "");
  EXPECT_EQ(message("[" + object_of(wide) + "," + object_of(wide) + "]", limits), "");
  EXPECT_NE(message("[" + object_of(wide) + "," + object_of(wide + 1) + "]", limits)
                .find("keys in large objects"),
            std::string::npos);
}

TEST(ParseJson, TextsFromOutsideHaveAllBounds) {
  EXPECT_EQ(message(object_of(1024), kOutsideJson), "");
  EXPECT_NE(message(object_of(1025), kOutsideJson), "");
  EXPECT_NE(message("{\"" + std::string(4097, 'k') + "\":0}", kOutsideJson), "");
  std::string wide = "[";
  for (int i = 0; i < 17; ++i) wide += (i ? "," : "") + object_of(1024);
  EXPECT_NE(message(wide + "]", kOutsideJson), "");
  std::string ids = "[0";
  for (int i = 1; i < 1 << 20; ++i) ids += ",1";
  EXPECT_EQ(message(ids + "]", kOutsideJson), "");
}

using Keys = std::vector<std::string>;

constexpr std::size_t kBuckets = 1024;
constexpr std::size_t kKeyBytes = 6;

/// Returns where Boost.JSON puts a key in a table of kBuckets, which lies at `address`.
std::size_t bucket_of(const std::string& key, std::size_t address) {
  return json::detail::digest(key.begin(), key.end(), address) % kBuckets;
}

/// Returns keys that share one bucket wherever their table lies. The hash begins with the address,
/// whose last four bits are zero, and characters below 16 leave the bits above those alone: two
/// keys of one length that collide at one address do so at all.
Keys colliding_keys(std::size_t count) {
  Keys keys;
  for (std::string key(kKeyBytes, 1); keys.size() < count;) {
    if (bucket_of(key, 0) == 0) keys.push_back(key);
    std::size_t at = 0;
    while (at < key.size() && ++key[at] == 16) key[at++] = 1;
    if (at == key.size()) {
      ADD_FAILURE() << "too few keys collide";
      break;
    }
  }
  return keys;
}

Keys random_keys(std::size_t count) {
  std::mt19937 rng(7);
  std::uniform_int_distribution<int> character(1, 15);
  std::set<std::string> keys;
  while (keys.size() < count) {
    std::string key(kKeyBytes, 0);
    for (char& c : key) c = static_cast<char>(character(rng));
    keys.insert(key);
  }
  return {keys.begin(), keys.end()};
}

/// Writes every character as an escape of the same length.
std::string object_of(const Keys& keys) {
  std::string text;
  for (const std::string& key : keys) {
    text += text.empty() ? "{\"" : ",\"";
    for (const char c : key)
      text += std::string("\\u000") + "0123456789abcdef"[static_cast<unsigned char>(c)];
    text += "\":0";
  }
  return text + "}";
}

std::string list_of(int times, const std::string& item) {
  std::string text = "[";
  for (int i = 0; i < times; ++i) text += (i ? "," : "") + item;
  return text + "]";
}

/// Returns how many earlier keys of their buckets the keys of a table at `address` are compared
/// with, as they are put there one after another.
std::size_t comparisons(const json::object& object, std::size_t address) {
  EXPECT_EQ(object.capacity(), kBuckets);
  std::map<std::size_t, std::size_t> used;
  std::size_t sum = 0;
  for (const auto& member : object) sum += used[bucket_of(std::string(member.key()), address)]++;
  return sum;
}

TEST(ParseJson, CollidingKeysAreComparedABoundedNumberOfTimes) {
  const auto of = [](const Keys& keys) {
    const auto v = parse_json(list_of(16, object_of(keys)), kOutsideJson);
    std::vector<std::size_t> sums;
    for (const std::size_t address : {0x10UL, 0x55d0c0a8b2c0UL, 0x7fffffffff70UL}) {
      std::size_t sum = 0;
      for (const json::value& object : v->as_array())
        sum += comparisons(object.as_object(), address);
      sums.push_back(sum);
    }
    return sums;
  };
  for (const std::size_t sum : of(colliding_keys(kBuckets))) {
    EXPECT_EQ(sum, 16 * kBuckets * (kBuckets - 1) / 2) << "these are the worst keys";
    EXPECT_LE(sum, kOutsideJson.max_wide_keys * kOutsideJson.max_object_keys / 2);
  }
  for (const std::size_t sum : of(random_keys(kBuckets))) EXPECT_LE(sum, 16 * kBuckets);
  // What the worst keys of objects of every size cost: some hundredths of a second.
  EXPECT_LE(kOutsideJson.max_wide_keys * kOutsideJson.max_object_keys / 2, std::size_t{1} << 23);
  EXPECT_LE(kOutsideJson.max_keys * kWideObjectKeys / 2, std::size_t{1} << 23);
}

TEST(ParseJson, CollidingKeysAreRefusedWhereOthersAre) {
  const auto refused_at = [](const std::string& text) {
    json::value out;
    const auto error = parse_json(text, out, kOutsideJson);
    EXPECT_TRUE(error && error->kind == Kind::kTooMany);
    return error ? error->byte : 0;
  };
  const Keys colliding = colliding_keys(kBuckets + 1), others = random_keys(kBuckets + 1);
  const std::string one = object_of(colliding);
  EXPECT_GT(refused_at(one), one.size() - 48);
  EXPECT_EQ(refused_at(one), refused_at(object_of(others)));
  const std::string seventeen = list_of(17,
                                        object_of(Keys(colliding.begin() + 1, colliding.end())));
  EXPECT_EQ(refused_at(seventeen),
            refused_at(list_of(17, object_of(Keys(others.begin() + 1, others.end())))));
  // However many there are, none is read beyond the bound.
  EXPECT_EQ(refused_at(object_of(colliding_keys(3000))), refused_at(one));
}

TEST(ParseJson, CollidingKeysAreToldApart) {
  const Keys keys = colliding_keys(300);
  const auto v = parse_json(object_of(keys), kOutsideJson);
  ASSERT_TRUE(v.ok()) << v.status().message();
  EXPECT_EQ(v->as_object().size(), keys.size());
  for (const std::string& key : keys) EXPECT_TRUE(v->as_object().contains(key));
  Keys twice = keys;
  twice.back() = twice.front();
  json::value out;
  const auto error = parse_json(object_of(twice), out, kOutsideJson);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, Kind::kRepeatedKey);
}

}  // namespace
}  // namespace quire
