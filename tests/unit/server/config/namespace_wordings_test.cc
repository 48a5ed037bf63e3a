#include "server/config/namespace_wordings.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::string refused(const std::string& text) {
  const auto read = parse_namespace_wordings(text, "words.toml");
  if (read.ok()) return "";
  EXPECT_EQ(read.status().field(), "prompt.namespaces_file");
  return read.status().message();
}

TEST(NamespaceWordings, ReadsATableForEachNamespace) {
  const auto read = parse_namespace_wordings(
      "[team-a]\ndocument = \"{title}\\n{text}\\n\\n\"\n[\"team.b\"]\nintro = ''\nquestion = 'Q: "
      "'\ncitation = ' [{n}]'\n",
      "words.toml");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ(read->at("team-a").wording,
            (PromptWording{.intro = "auto", .document = "{title}\n{text}\n\n"}));
  EXPECT_EQ(read->at("team.b").wording, (PromptWording{.intro = "", .question = "Q: "}));
  EXPECT_EQ(read->at("team-a").citation, std::nullopt);
  EXPECT_EQ(read->at("team.b").citation, " [{n}]");
  EXPECT_TRUE(load_namespace_wordings("")->empty());
}

TEST(NamespaceWordings, SaysWhatIsWrong) {
  EXPECT_NE(refused("team = 1").find("words.toml, namespace 'team' must be a table"),
            std::string::npos);
  EXPECT_NE(refused("[team]\nwords = 'x'").find("unknown entry 'words'"), std::string::npos);
  EXPECT_NE(refused("[team]\nintro = 3").find("intro must be a text"), std::string::npos);
  EXPECT_NE(refused("[team\n").find("line 1"), std::string::npos);
  EXPECT_NE(refused("['team a']\nintro = 'x'").find("no namespace can have this name"),
            std::string::npos);
  EXPECT_NE(refused("['*']\nintro = 'x'").find("prompt.intro"), std::string::npos);
  EXPECT_NE(
      load_namespace_wordings("/nowhere/words.toml").status().message().find("cannot be read"),
      std::string::npos);
}

}  // namespace
}  // namespace quire
