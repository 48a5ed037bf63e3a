#include "server/config/config.h"
#include "server/config/byte_size.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace quire {
namespace {

TEST(Config, DefaultsPrintAndReadBack) {
  Config a;
  a.server.cors_origins = {"https://a.example", "x\"y\\z"};
  a.disk.path = "/tmp/with \"quotes\"\n";
  a.policy.shadow_ratio = 0.125;
  for (const bool help : {false, true}) {
    Config b;
    const std::string text = config_to_toml(a, help);
    const auto s = apply_toml(text, "x.toml", b);
    ASSERT_TRUE(s.ok()) << s.message() << text;
    EXPECT_EQ(config_to_toml(b, false), config_to_toml(a, false));
  }
}

TEST(Config, EverySettingIsExplained) {
  namespace fs = std::filesystem;
  std::string pages;
  for (const auto& e : fs::directory_iterator(fs::path(QUIRE_SOURCE_DIR) / "docs")) {
    if (e.path().extension() != ".md") continue;
    std::ifstream page(e.path());
    pages.append(std::istreambuf_iterator<char>(page), {});
  }
  for (const Setting& s : setting_table()) {
    // A name in an example of a file explains nothing.
    bool found = false;
    for (const char* end : {"`", " ", "="})
      found = found || pages.find("`" + s.name() + end) != std::string::npos;
    EXPECT_TRUE(found) << s.name() << " is in no page of docs/; explain it in operations.md";
  }
}

TEST(Config, OnlyChangedSettingsArePrintedBesideABase) {
  Config c;
  EXPECT_EQ(changed_to_toml(c, Config()), "");
  c.policy.shadow_ratio = 0.125;
  c.disk.path = "/tmp/x";
  EXPECT_EQ(changed_to_toml(c, Config()), "disk.path = \"/tmp/x\"\npolicy.shadow_ratio = 0.125\n");
  EXPECT_EQ(changed_to_toml(c, c), "");
}

TEST(Config, InlineTablesAndSectionsReadTheSame) {
  Config a, b;
  ASSERT_TRUE(apply_toml("server = {port=9000, host=\"::1\"}\n", "a", a).ok());
  ASSERT_TRUE(apply_toml("[server]\nport = 9000\nhost = \"::1\"\n", "b", b).ok());
  EXPECT_EQ(a.server.port, 9000);
  EXPECT_EQ(config_to_toml(a, false), config_to_toml(b, false));
}

TEST(Config, LaterSourcesWin) {
  Config c;
  ASSERT_TRUE(apply_toml("[server]\nport = 1000\nthreads = 3\n", "f", c).ok());
  ASSERT_TRUE(apply_environment(
                  {{"QUIRE_SERVER__PORT", "2000"}, {"QUIRE_MODEL_DIR", "x"}, {"OTHER", "y"}}, c)
                  .ok());
  EXPECT_EQ(c.server.port, 2000);
  ASSERT_TRUE(apply_flags({"server.port=3000", "server.cors_origins=a,b", "server.ui=false",
                           "cache.max_pinned_ratio=0.25"},
                          c)
                  .ok());
  EXPECT_EQ(c.server.port, 3000);
  EXPECT_EQ(c.server.threads, 3);
  EXPECT_EQ(c.server.cors_origins, (std::vector<std::string>{"a", "b"}));
  EXPECT_FALSE(c.server.ui);
  EXPECT_EQ(c.cache.max_pinned_ratio, 0.25);
}

TEST(Config, TheLeadInIsDecidedByCertificatesUnlessItIsSet) {
  Config c;
  EXPECT_EQ(c.policy.lead_in, "auto");
  for (const char* value : {"on", "off", "auto"}) {
    ASSERT_TRUE(apply_flags({std::string("policy.lead_in=") + value}, c).ok());
    EXPECT_EQ(c.policy.lead_in, value);
  }
}

TEST(Config, MemoryIsPageLockedAsSettingsSay) {
  Config c;
  EXPECT_EQ(c.cache.page_locked, "auto");
  for (const char* value : {"on", "off", "auto"}) {
    ASSERT_TRUE(apply_flags({std::string("cache.page_locked=") + value}, c).ok());
    EXPECT_EQ(c.cache.page_locked, value);
  }
  EXPECT_EQ(apply_flags({"cache.page_locked=true"}, c).field(), "cache.page_locked");
}

TEST(Config, UnknownNamesComeWithTheNearest) {
  Config c;
  const std::pair<std::string, std::string> cases[] = {
      {"[server]\nprot = 1\n", "server.port"},
      {"[sever]\nport = 1\n", "server"},
      {"[disk]\nmax_byte = 1\n", "disk.max_bytes"}};
  for (const auto& [text, near] : cases) {
    const auto s = apply_toml(text, "f.toml", c);
    ASSERT_FALSE(s.ok()) << text;
    EXPECT_NE(s.message().find("'" + near + "'"), std::string::npos) << s.message();
    EXPECT_NE(s.message().find("f.toml, line"), std::string::npos) << s.message();
  }
  EXPECT_FALSE(apply_environment({{"QUIRE_SERVER__PROT", "1"}}, c).ok());
  EXPECT_FALSE(apply_flags({"server.prot=1"}, c).ok());
}

TEST(Config, AVariableWithOneUnderscoreIsNotPassedOver) {
  Config c;
  const auto s = apply_environment({{"QUIRE_DISK_MAX_BYTES", "1GiB"}}, c);
  ASSERT_FALSE(s.ok());
  EXPECT_EQ(s.field(), "disk.max_bytes");
  EXPECT_NE(s.message().find("write QUIRE_DISK__MAX_BYTES"), std::string::npos) << s.message();
  // What Kubernetes makes of a service named quire-server, and variables of the other commands.
  EXPECT_TRUE(apply_environment({{"QUIRE_SERVER_PORT", "tcp://10.0.0.1:8080"},
                                 {"QUIRE_SERVER_SERVICE_HOST", "10.0.0.1"},
                                 {"QUIRE_SERVER", "http://127.0.0.1:8080"},
                                 {"QUIRE_CACHE", "/tmp"}},
                                c)
                  .ok());
}

TEST(Config, WrongTypesAndRangesNameTheSetting) {
  Config c;
  const std::pair<const char*, const char*> cases[] = {
      {"[server]\nport = \"x\"\n", "server.port"},
      {"[server]\nport = 70000\n", "server.port"},
      {"[server]\nhost = 1\n", "server.host"},
      {"[server]\nui = 1\n", "server.ui"},
      {"[cache]\neviction = \"fifo\"\n", "cache.eviction"},
      {"[server]\ncors_origins = \"x\"\n", "server.cors_origins"},
      {"[policy]\nshadow_ratio = 2.0\n", "policy.shadow_ratio"},
      {"[policy]\nlead_in = \"always\"\n", "policy.lead_in"},
      {"[policy]\nlead_in = true\n", "policy.lead_in"},
      {"[cache]\ndram_bytes = -1\n", "cache.dram_bytes"}};
  for (const auto& [text, field] : cases) {
    const auto s = apply_toml(text, "f", c);
    ASSERT_FALSE(s.ok()) << text;
    EXPECT_EQ(s.field(), field);
  }
  for (const auto* flag :
       {"server.port=abc", "server.port=", "server.port", "server.ui=maybe", "nothing",
        "server.port=80x", "cache.gpu_bytes=1", "disk.verify_on_read=false"})
    EXPECT_FALSE(apply_flags({flag}, c).ok()) << flag;
  EXPECT_FALSE(apply_toml("server = 3\n", "f", c).ok());
  EXPECT_FALSE(apply_toml("[server\n", "f", c).ok());
  EXPECT_FALSE(apply_toml("[\x1f\x1f]\n", "f", c).ok());
}

TEST(Config, OriginsAreChecked) {
  for (const auto* good :
       {"*", "https://a.example", "http://localhost:3000", "http://127.0.0.1", "http://[::1]:8080",
        "http://[::1]", "chrome-extension://abcdefgh", "https://a.example,https://b.example"}) {
    Config c;
    ASSERT_TRUE(apply_flags({std::string("server.cors_origins=") + good}, c).ok());
    EXPECT_TRUE(check_config(c).ok()) << good;
  }
  for (const auto* bad :
       {"foo", "a.example", "https://", "https://a.example/", "https://a.example/app", "://a",
        "https://A.example", "https://a.example:", "https://a.example:x", "http://[::1",
        "https://a example", "null", R"(["http://x"])", R"(["http://x","http://y"])", "[http://x]",
        "https://a.example:123456", "*.example"}) {
    Config c;
    ASSERT_TRUE(apply_flags({std::string("server.cors_origins=") + bad}, c).ok());
    const auto s = check_config(c);
    EXPECT_EQ(s.field(), "server.cors_origins") << bad;
    const bool list = std::string_view(bad).find("http://x") != std::string_view::npos;
    EXPECT_NE(s.message().find(list ? "a comma between" : "scheme://host[:port]"),
              std::string::npos)
        << s.message();
  }
  Config c;
  ASSERT_TRUE(
      apply_toml("[server]\ncors_origins = [\"http://x\", \"https://y:8443\"]\n", "f", c).ok());
  EXPECT_TRUE(check_config(c).ok());
}

TEST(Config, WhatThisBuildDoesNotHaveIsRefusedNotIgnored) {
  for (const auto* flag :
       {"remote.url=http://x", "catalog.url=mysql://x", "cache.block_tokens=48",
        "retrieve.language=klingon", "trace.endpoint=127.0.0.1:4318",
        "trace.service_name=", "remote.lease_ms=999", "server.allowed_hosts=[\"*\"]",
        "server.allowed_hosts=http://x", "trace.endpoint=http://user:secret@host/v1/traces",
        "retrieve.embeddings_url=https://secret@host/v1", "fetch.hosts=http://example.org/",
        "fetch.hosts=[\"a.example\"]", "fetch.hosts=[a.example]",
        "fetch.hosts=a.example, b.example", "model.max_model_len=5", "backup.path=data/backups"}) {
    Config c;
    ASSERT_TRUE(apply_flags({flag}, c).ok()) << flag;
    const auto s = check_config(c);
    ASSERT_FALSE(s.ok()) << flag;
    EXPECT_EQ(s.field(), std::string(flag).substr(0, std::string(flag).find('=')));
    EXPECT_EQ(s.message().find("secret"), std::string::npos) << s.message();
  }
  EXPECT_TRUE(check_config(Config()).ok());
}

TEST(Config, PasswordsAreNotPrintedAndTheirChangeIsSeen) {
  Config c;
  ASSERT_TRUE(apply_flags({"remote.url=redis://u:one@h1,h2?sentinel_password=two",
                           "catalog.url=postgresql://u:three@h/db"},
                          c)
                  .ok());
  const std::string text = config_to_toml(c, true);
  for (const auto* secret : {"one@", "=two", "three"})
    EXPECT_EQ(text.find(secret), std::string::npos) << secret;
  EXPECT_NE(text.find("postgresql://u:***@h/db"), std::string::npos);
  Config other = c;
  EXPECT_TRUE(changed_settings(c, other).empty());
  other.catalog.url = "postgresql://u:four@h/db";
  other.limits.document_tokens = 3;
  EXPECT_EQ(changed_settings(c, other),
            (std::vector<std::string>{"limits.document_tokens", "catalog.url"}));
}

TEST(Config, NamespacesWithKeysOfTheirOwnDoNotShareKv) {
  Config c;
  ASSERT_TRUE(
      apply_flags({"remote.keys_file=/etc/quire/kv-keys.toml", "remote.lease_ms=0"}, c).ok());
  EXPECT_TRUE(check_config(c).ok());
  c.cache.share_across_namespaces = true;
  const auto s = check_config(c);
  EXPECT_EQ(s.field(), "remote.keys_file");
  EXPECT_NE(s.message().find("cache.share_across_namespaces"), std::string::npos);
}

TEST(Config, AliasesAreNamesOfTheirOwn) {
  for (const auto& [aliases, good] : {std::pair{"gpt-4o,llama3:latest", true},
                                      {"a b", false},
                                      {"a,a", false},
                                      {"default", false}}) {
    Config c;
    ASSERT_TRUE(apply_flags({std::string("model.aliases=") + aliases}, c).ok());
    EXPECT_EQ(check_config(c).field(), good ? "" : "model.aliases") << aliases;
  }
}

TEST(Config, TokensNeedIssuerAudienceAndASafeSourceOfKeys) {
  const auto field = [](std::vector<std::string> flags) {
    Config c;
    EXPECT_TRUE(apply_flags(flags, c).ok());
    return check_config(c).field();
  };
  const std::string issuer = "auth.jwt_issuer=https://id.example", audience = "auth.jwt_audience=q";
  EXPECT_EQ(field({issuer, audience}), "");
  EXPECT_EQ(field({issuer}), "auth.jwt_audience");
  EXPECT_EQ(field({audience}), "auth.jwt_audience");
  EXPECT_EQ(field({"auth.jwt_keys=k.json"}), "auth.jwt_keys");
  EXPECT_EQ(field({issuer, audience, "auth.jwt_scope_claim="}), "auth.jwt_scope_claim");
  EXPECT_EQ(field({"auth.jwt_issuer=http://id.example", audience}), "auth.jwt_issuer");
  EXPECT_EQ(field({"auth.jwt_issuer=http://127.0.0.1.evil", audience}), "auth.jwt_issuer");
  EXPECT_EQ(field({"auth.jwt_issuer=http://127.0.0.1:9", audience}), "");
  EXPECT_EQ(field({"auth.jwt_issuer=any", audience, "auth.jwt_keys=keys.json"}), "");
  EXPECT_EQ(field({"auth.jwt_issuer=any", audience, "auth.jwt_keys=http://id/k"}), "auth.jwt_keys");
}

TEST(Config, MatricesAreCutOverAtLeastOneGpu) {
  Config c;
  EXPECT_EQ(Config().model.tensor_parallel, 1);
  for (const char* refused : {"model.tensor_parallel=0", "model.tensor_parallel=-1",
                              "model.tensor_parallel=65", "model.tensor_parallel=two"})
    EXPECT_EQ(apply_flags({refused}, c).field(), "model.tensor_parallel") << refused;
}

TEST(Config, EmbeddingsNeedRetrieval) {
  Config c;
  ASSERT_TRUE(apply_flags({"retrieve.embeddings=true", "model.prefix_cache_bytes=0"}, c).ok());
  EXPECT_TRUE(check_config(c).ok());
  EXPECT_EQ(c.model.prefix_cache_bytes, 0);
  ASSERT_TRUE(apply_flags({"retrieve.enabled=false"}, c).ok());
  EXPECT_EQ(check_config(c).field(), "retrieve.embeddings");
  EXPECT_FALSE(apply_flags({"model.prefix_cache_bytes=-2"}, c).ok());
}

TEST(Config, ScorersByMeaningNeedSomethingThatEmbeds) {
  for (const std::string scorer : {"embedding", "hybrid"}) {
    Config c;
    ASSERT_TRUE(apply_flags({"retrieve.scorer=" + scorer}, c).ok());
    EXPECT_EQ(check_config(c).field(), "retrieve.scorer");
    ASSERT_TRUE(apply_flags({"retrieve.encoder=minilm"}, c).ok());
    EXPECT_TRUE(check_config(c).ok());
    ASSERT_TRUE(apply_flags({"retrieve.encoder=", "retrieve.embeddings=true"}, c).ok());
    EXPECT_TRUE(check_config(c).ok());
  }
  Config c;
  EXPECT_FALSE(apply_flags({"retrieve.scorer=magic"}, c).ok());
  EXPECT_FALSE(apply_flags({"retrieve.encoder_weights=w4"}, c).ok());
  EXPECT_FALSE(apply_flags({"retrieve.encoder_threads=-1"}, c).ok());
}

TEST(Config, OneThingEmbeds) {
  const auto refused = [](const std::vector<std::string>& flags) {
    Config c;
    EXPECT_TRUE(apply_flags(flags, c).ok());
    return check_config(c).field();
  };
  const std::string url = "retrieve.embeddings_url=http://127.0.0.1:9/v1/embeddings";
  EXPECT_EQ(refused({url, "retrieve.embeddings_model=m", "retrieve.scorer=hybrid"}), "");
  EXPECT_EQ(refused({url, "retrieve.encoder=minilm"}), "retrieve.embeddings_url");
  EXPECT_EQ(refused({url, "retrieve.embeddings=true"}), "retrieve.embeddings_url");
  EXPECT_EQ(refused({"retrieve.embeddings_url=ftp://x"}), "retrieve.embeddings_url");
  EXPECT_EQ(refused({"retrieve.embeddings_model=m"}), "retrieve.embeddings_url");
  EXPECT_EQ(refused({"retrieve.embeddings_key_env=KEY"}), "retrieve.embeddings_url");
}

TEST(Config, EmbeddingsOnDiskAreBoundedOrSwitchedOff) {
  Config c;
  EXPECT_EQ(c.retrieve.max_embedding_disk_bytes, std::int64_t{4} << 30);
  ASSERT_TRUE(apply_flags({"retrieve.max_embedding_disk_bytes=9MiB"}, c).ok());
  EXPECT_EQ(c.retrieve.max_embedding_disk_bytes, 9 << 20);
  ASSERT_TRUE(apply_flags({"retrieve.max_embedding_disk_bytes=0"}, c).ok());
  EXPECT_TRUE(check_config(c).ok());
  EXPECT_FALSE(apply_flags({"retrieve.max_embedding_disk_bytes=-1"}, c).ok());
}

TEST(ByteSizeTest, UnitsArePowersOfAThousandOrOf1024) {
  const struct {
    const char* text;
    std::optional<std::int64_t> bytes;
  } cases[] = {{"0", 0},
               {"4096", 4096},
               {"-1", -1},
               {"1k", 1024},
               {"4GiB", std::int64_t{4} << 30},
               {"4 GiB", std::int64_t{4} << 30},
               {"512MB", 512000000},
               {"1.5g", 1610612736},
               {"2tib", std::int64_t{2} << 40},
               {"7B", 7},
               {"", {}},
               {"GiB", {}},
               {"4Gi", {}},
               {"4 G B", {}},
               {"-4GiB", {}},
               {"1e3", {}},
               {"9999999TiB", {}},
               {"0x10", {}},
               {"nan", {}},
               {"inf", {}},
               {" 4", {}}};
  for (const auto& c : cases) EXPECT_EQ(parse_byte_size(c.text), c.bytes) << c.text;
}

TEST(ConfigTest, SizesMayHaveUnitsInFlagsAndFiles) {
  Config config;
  ASSERT_TRUE(apply_flags({"cache.dram_bytes=4GiB"}, config).ok());
  EXPECT_EQ(config.cache.dram_bytes, std::int64_t{4} << 30);
  const auto wrong = apply_flags({"cache.dram_bytes=many"}, config);
  EXPECT_NE(wrong.message().find("512MiB"), std::string::npos) << wrong.message();
  EXPECT_FALSE(apply_flags({"server.port=4k"}, config).ok());
}

}  // namespace
}  // namespace quire
