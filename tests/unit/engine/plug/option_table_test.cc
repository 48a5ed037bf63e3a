#include "engine/plug/option_table.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace quire {
namespace {

struct Options {
  std::optional<double> share;
  std::optional<std::int64_t> tokens;
  bool on = true;
};

/// Overwrites what a function that has returned left on the stack.
[[gnu::noinline]] std::string use_the_stack() {
  volatile char bytes[4096];
  for (volatile char& byte : bytes) byte = '\xfe';
  return std::string(1, bytes[17]);
}

/// Makes defaults from numbers. Short texts lie in the string object itself, on the stack.
[[gnu::noinline]] OptionFields<Options> fields() {
  return {number_option("share", &Options::share, {0, 1}, number_text(0.15), "a share"),
          number_option("tokens", &Options::tokens, {1, 9}, std::string(40, '7'), "some tokens"),
          flag_option("on", &Options::on, "a switch")};
}

TEST(OptionTable, DefaultsMadeOfTemporariesStay) {
  const OptionFields<Options> made = fields();
  EXPECT_EQ(use_the_stack(), "\xfe");
  OptionTable<Options> table;
  table.add(made);
  ASSERT_EQ(table.described().size(), 3u);
  EXPECT_EQ(table.described()[0].default_value, "0.15");
  EXPECT_EQ(table.described()[1].default_value, std::string(40, '7'));
  EXPECT_EQ(table.described()[2].default_value, "on");
}

TEST(OptionTable, ValuesAreCheckedAndSet) {
  OptionTable<Options> table;
  table.add(fields());
  const auto wrong = table.parse(PlugOptions(PlugOptions::Values{{"share", "2"}}), "cache.options");
  EXPECT_EQ(wrong.status().field(), "cache.options.share");
  const auto parsed = table.parse(PlugOptions(PlugOptions::Values{{"share", "0.5"}, {"on", "off"}}),
                                  "cache.options");
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(parsed->share, 0.5);
  EXPECT_FALSE(parsed->tokens.has_value());
  EXPECT_FALSE(parsed->on);
}

}  // namespace
}  // namespace quire
