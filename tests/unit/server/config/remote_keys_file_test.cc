#include "server/config/remote_keys_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>
#include <string>

namespace quire {
namespace {

const std::string kHex(64, 'a');

std::optional<std::string> variable(const std::string& name) {
  if (name == "GOOD") return kHex;
  if (name == "SHORT") return "5ec4e7";
  return std::nullopt;
}
std::string refused(const std::string& text) {
  const auto read = parse_remote_keys(text, "kv-keys.toml", variable);
  if (read.ok()) return "";
  EXPECT_EQ(read.status().field(), "remote.keys_file");
  return read.status().message();
}

TEST(RemoteKeysFile, ReadsKeysFromFilesAndVariables) {
  const std::string path = ::testing::TempDir() + "/quire-kv.key";
  std::ofstream(path) << std::string(64, 'b') << "\n";
  const auto read = parse_remote_keys(
      "[team-a]\nvariable = 'GOOD'\n[\"*\"]\nfile = '" + path + "'\n", "kv-keys.toml", variable);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->size(), 2u);
  EXPECT_NE(read->find("team-a")->id, read->find("team-b")->id);
  EXPECT_EQ(load_remote_keys("").value(), nullptr);
}

TEST(RemoteKeysFile, SaysWhatIsWrongAndShowsNoKey) {
  const auto says = [](const std::string& text, const std::string& part) {
    const std::string message = refused(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find("5ec4e7"), std::string::npos) << message;
  };
  says("team = 1", "kv-keys.toml, namespace 'team' must be a table");
  says("[team]\nkey = '5ec4e7'", "unknown entry 'key'");
  says("[team]\nvariable = 7", "variable must be a text");
  says("[team]\n", "give either file or variable");
  says("[team]\nfile = 'a'\nvariable = 'GOOD'", "give either file or variable");
  says("[team]\nvariable = 'NONE'", "there is no environment variable NONE");
  says("[team]\nvariable = 'SHORT'", "namespace 'team': the key has 6 characters");
  says("[team]\nfile = '/nowhere/key'", "/nowhere/key cannot be read");
  says("", "names no namespace");
  says("[team\n", "line 1");
  EXPECT_NE(load_remote_keys("/nowhere/kv-keys.toml").status().message().find("cannot be read"),
            std::string::npos);
}

}  // namespace
}  // namespace quire
