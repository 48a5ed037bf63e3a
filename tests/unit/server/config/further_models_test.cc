#include "server/config/further_models.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace quire {
namespace {

class FurtherModels : public ::testing::Test {
 protected:
  FurtherModels() {
    config.model.path = "models/own";
    config.model.aliases = {"gpt-4o"};
    config.model.draft_path = "models/own-draft";
    config.model.prompt_format = "llama3";
    config.model.weights = "int8";
    config.model.threads = 3;
    config.server.port = 9000;
  }
  ~FurtherModels() override { std::filesystem::remove_all(folder); }
  std::string file(const std::string& name, const std::string& text) {
    const std::string path = (folder / name).string();
    std::ofstream(path) << text;
    return path;
  }
  Status error(const std::string& entry) {
    config.model.further = {entry};
    return read_further_models(config).status();
  }

  Config config;
  const std::filesystem::path folder = [] {
    std::string pattern = std::filesystem::temp_directory_path() / "quire_further_XXXXXX";
    return std::filesystem::path(::mkdtemp(pattern.data()));
  }();
};

TEST_F(FurtherModels, WithoutAnyNothingIsRead) {
  const auto none = read_further_models(config);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
}

TEST_F(FurtherModels, AFolderTakesTheSettingsOfTheServiceWhereTheySuitAnyModel) {
  config.model.further = {"small=models/small", "big=hf:org/repo"};
  const auto all = read_further_models(config);
  ASSERT_TRUE(all.ok()) << all.status().message();
  ASSERT_EQ(all->size(), 2u);
  const Config::Model& small = (*all)[0].config.model;
  EXPECT_EQ(small.name, "small");
  EXPECT_EQ(small.path, "models/small");
  EXPECT_EQ(small.weights, "int8");
  EXPECT_EQ(small.threads, 3);
  EXPECT_EQ(small.prompt_format, "auto");
  EXPECT_TRUE(small.aliases.empty() && small.draft_path.empty() && small.further.empty());
  EXPECT_EQ((*all)[1].config.model.path, "hf:org/repo");
  EXPECT_EQ((*all)[1].source, "big=hf:org/repo");
}

TEST_F(FurtherModels, AFileSetsWhatAModelMayHaveOfItsOwn) {
  const std::string path = file("small.toml",
                                "[model]\npath = \"models/small\"\naliases = [\"tiny\"]\n"
                                "weights = \"bf16\"\n[policy]\nstrategy = \"reuse\"\n"
                                "[prompt]\nquestion = \"Q: \"\n[cache]\nblock_tokens = 32\n");
  config.model.further = {"small=" + path};
  const auto all = read_further_models(config);
  ASSERT_TRUE(all.ok()) << all.status().message();
  const Config& small = (*all)[0].config;
  EXPECT_EQ(small.model.weights, "bf16");
  EXPECT_EQ(small.model.aliases, std::vector<std::string>{"tiny"});
  EXPECT_EQ(small.policy.strategy, "reuse");
  EXPECT_EQ(small.prompt.question, "Q: ");
  EXPECT_EQ(small.cache.block_tokens, 32);
  EXPECT_EQ(small.server.port, 9000);
}

TEST_F(FurtherModels, WhatBelongsToTheServiceIsRefusedByName) {
  for (const auto& [text, field] :
       {std::pair{"[server]\nport = 1\n", "server.port"},
        std::pair{"[auth]\nkeys_file = \"k\"\n", "auth.keys_file"},
        std::pair{"[disk]\npath = \"d\"\n", "disk.path"},
        std::pair{"[cache]\ndram_bytes = 1\n", "cache.dram_bytes"},
        std::pair{"[prompt]\ncitation = \"[{n}]\"\n", "prompt.citation"},
        std::pair{"[model]\nbackend = \"cpu\"\n", "model.backend"},
        std::pair{"[model]\ntensor_parallel = 2\n", "model.tensor_parallel"},
        std::pair{"[model]\nsplit_kv = true\n", "model.split_kv"},
        std::pair{"[model]\nname = \"n\"\n", "model.name"},
        std::pair{"[model]\nfurther = [\"a=b\"]\n", "model.further"}}) {
    const std::string path = file("bad.toml", text);
    const Status s = error("small=" + path);
    EXPECT_EQ(s.field(), field);
    EXPECT_NE(s.message().find(path + ", line 2"), std::string::npos) << s.message();
  }
  const std::string path = file("bad.toml", "[model]\npth = \"x\"\n");
  EXPECT_NE(error("small=" + path).message().find("did you mean 'model.path'"), std::string::npos);
  EXPECT_EQ(error("small=" + file("none.toml", "[model]\nthreads = 2\n")).field(), "model.path");
  EXPECT_EQ(error("small=" + (folder / "absent.toml").string()).code(), Code::kNotFound);
}

TEST_F(FurtherModels, NamesAreThereAndUnlikeEachOther) {
  for (const char* entry : {"models/small", "=models/small", "small=", "a b=models/small"}) {
    EXPECT_EQ(error(entry).field(), "model.further") << entry;
    EXPECT_NE(error(entry).message().find("NAME=MODEL"), std::string::npos) << entry;
  }
  for (const char* entry : {"default=models/small", "gpt-4o=models/small"})
    EXPECT_NE(error(entry).message().find("name of two models"), std::string::npos) << entry;
  config.model.further = {"a=models/x", "a=models/y"};
  EXPECT_EQ(read_further_models(config).status().field(), "model.further");
  const std::string path = file("a.toml", "[model]\npath = \"x\"\naliases = [\"gpt-4o\"]\n");
  EXPECT_NE(error("a=" + path).message().find("'gpt-4o'"), std::string::npos);
  config.model.name = "own";
  EXPECT_EQ(error("own=models/x").field(), "model.further");
  EXPECT_EQ(error("default=models/x").field(), "model.further");
  EXPECT_TRUE(error("other=models/x").ok());
}

}  // namespace
}  // namespace quire
