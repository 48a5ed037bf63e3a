#include "server/support/log_sink.h"

#include <gtest/gtest.h>

#include <boost/json/object.hpp>

#include "base/json_parse.h"

namespace quire {
namespace {

TEST(LogJson, LinesAreObjectsWhateverTheValues) {
  const std::string line = log_json(LogLevel::kInfo, "a \"quoted\"\nmessage",
                                    {{"status", "200"},
                                     {"ms", "1.50"},
                                     {"id", "007"},
                                     {"text", "x\ty"},
                                     {"none", ""},
                                     {"dash", "1-2"}},
                                    0);
  const auto v = parse_json(line);
  ASSERT_TRUE(v.ok()) << line << v.status().message();
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto& o = v->as_object();
  EXPECT_EQ(o.at("level").as_string(), "info");
  EXPECT_EQ(o.at("ts").as_string(), "1970-01-01T00:00:00.000Z");
  EXPECT_TRUE(o.at("status").is_int64());
  EXPECT_TRUE(o.at("ms").is_double());
  EXPECT_TRUE(o.at("id").is_string());
  EXPECT_TRUE(o.at("dash").is_string());
  EXPECT_FALSE(o.contains("none"));
}

TEST(LogSink, UnknownLevelsAreRefused) {
  EXPECT_EQ(install_log_sink("loud", "json").field(), "log.level");
}

}  // namespace
}  // namespace quire
