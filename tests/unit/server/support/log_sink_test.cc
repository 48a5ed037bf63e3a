#include "server/support/log_sink.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/json/object.hpp>
#include <cstdlib>

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

TEST(LogSink, AutoIsTextOnATerminalOnly) {
  EXPECT_TRUE(logs_json("json"));
  EXPECT_FALSE(logs_json("text"));
  const int kept = dup(STDERR_FILENO);
  ASSERT_GE(kept, 0);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  dup2(ends[1], STDERR_FILENO);
  const bool in_pipe = logs_json("auto");
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  const bool have_terminal = terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0;
  const int other = have_terminal ? open(ptsname(terminal), O_RDWR | O_NOCTTY) : -1;
  if (other >= 0) dup2(other, STDERR_FILENO);
  const bool on_terminal = logs_json("auto");
  dup2(kept, STDERR_FILENO);
  for (const int fd : {kept, ends[0], ends[1], terminal, other})
    if (fd >= 0) close(fd);
  EXPECT_TRUE(in_pipe);
  if (other < 0) GTEST_SKIP() << "this machine has no pseudo-terminals";
  EXPECT_FALSE(on_terminal);
}

TEST(LogSink, AValueInTextIsOneWordOrStandsInQuotes) {
  const auto text = [](std::string value) { return log_text({"reason", std::move(value)}); };
  EXPECT_EQ(text("done"), " reason=done");
  EXPECT_EQ(text("/a/b:c,d"), " reason=/a/b:c,d");
  EXPECT_EQ(text("no such host"), " reason=\"no such host\"");
  EXPECT_EQ(text("a=b"), " reason=\"a=b\"");
  EXPECT_EQ(text("say \"yes\" \\ no"), " reason=\"say \\\"yes\\\" \\\\ no\"");
  EXPECT_EQ(text("a\nlevel=error"), " reason=\"a\\nlevel=error\"");
  EXPECT_EQ(text("a\r\x1b[2J\x7f"), " reason=\"a\\x0d\\x1b[2J\\x7f\"");
}

}  // namespace
}  // namespace quire
