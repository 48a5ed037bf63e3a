// Each damaged or inconsistent tokenizer file is refused with one message that names the file.
#include <array>
#include <fstream>

#include "engine/tokenizer/spm_proto.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

/// Expects that these files are refused with a message that names `file` and holds `words`.
void expect_refused(const TokenizerFiles& files, const std::string& file,
                    const std::string& words) {
  const auto t = make_tokenizer(files);
  ASSERT_FALSE(t.ok()) << "accepted; expected: " << words;
  EXPECT_NE(t.status().message().find(file), std::string::npos) << t.status().to_string();
  EXPECT_NE(t.status().message().find(words), std::string::npos) << t.status().to_string();
}

TokenizerFiles with_vocab(std::string vocab, std::string merges,
                          std::optional<std::string> config = std::nullopt) {
  TokenizerFiles files;
  files.vocab_json = std::move(vocab);
  files.merges_txt = std::move(merges);
  files.tokenizer_config = std::move(config);
  return files;
}

TEST(MalformedFilesTest, VocabularyAndMerges) {
  const std::string good = test::small_vocab_json({"he"});
  ASSERT_TRUE(make_tokenizer(with_vocab(good, "h e\n")).ok());
  expect_refused(with_vocab("{\"a\": 1", "h e\n"), "vocab.json", "invalid JSON");
  expect_refused(with_vocab("[1]", "h e\n"), "vocab.json", "must hold a JSON object");
  expect_refused(with_vocab("{}", "h e\n"), "vocab.json", "empty");
  expect_refused(with_vocab("{\"a\": \"x\"}", "h e\n"), "vocab.json", "no plausible id");
  expect_refused(with_vocab("{\"a\": -1}", "h e\n"), "vocab.json", "no plausible id");
  expect_refused(with_vocab("{\"a\": 4000000}", "h e\n"), "vocab.json", "no plausible id");
  expect_refused(with_vocab("{\"a\": 1e300}", "h e\n"), "vocab.json", "no plausible id");
  expect_refused(with_vocab("{\"a\": 0, \"b\": 0}", "h e\n"), "vocab.json", "given twice");
  expect_refused(with_vocab("{\"" + std::string(5000, 'a') + "\": 0}", "h e\n"), "vocab.json",
                 "absurdly long");
  expect_refused(with_vocab("{\"h\": 0, \"e\": 1, \"he\": 2}", "h e\n"), "vocab.json",
                 "no token stands for byte");
  expect_refused(with_vocab(good, "h x\n"), "merges.txt", "line 1");
  expect_refused(with_vocab(good, "h e\n\nh q z\n"), "merges.txt", "line 3");
  expect_refused(with_vocab(good, "h\n"), "merges.txt", "two pieces");
  expect_refused(with_vocab(good, "e h\n"), "merges.txt", "not in the vocabulary");
  expect_refused(with_vocab(good, ""), "merges.txt", "no merges");
  TokenizerFiles half;
  half.vocab_json = good;
  expect_refused(half, "vocab.json", "no merges.txt");
}

TEST(MalformedFilesTest, Configuration) {
  const std::string vocab = test::small_vocab_json({"he"});
  const auto config = [&](const std::string& json) { return with_vocab(vocab, "h e\n", json); };
  expect_refused(config("{"), "tokenizer_config.json", "invalid JSON");
  expect_refused(config(R"({"added_tokens_decoder": {"x": {"content": "a"}}})"),
                 "tokenizer_config.json", "token id");
  expect_refused(config(R"({"added_tokens_decoder": {"300": {"content": ""}}})"),
                 "tokenizer_config.json", "content");
  expect_refused(config(R"({"added_tokens_decoder": {"256": {"content": "<other>"}}})"),
                 "vocab.json", "id 256");
  expect_refused(config(R"({"added_tokens_decoder": {"3000000": {"content": "<far>"}}})"),
                 "vocab.json", "absurd id");
  expect_refused(
      config(R"({"added_tokens_decoder": {"257": {"content": "<x>"}, "258": {"content": "<x>"}}})"),
      "vocab.json", "two ids");
  expect_refused(config(R"({"eos_token": "<missing>"})"), "tokenizer_config.json", "eos_token");
  expect_refused(config(R"({"bos_token": "<missing>", "add_bos_token": true})"),
                 "tokenizer_config.json", "bos_token");
  expect_refused(config(R"({"tokenizer_class": "MysteryTokenizer"})"), "vocab.json",
                 "MysteryTokenizer");
}

TEST(MalformedFilesTest, AVocabularyThatDoesNotFitTheModel) {
  TokenizerFiles files = with_vocab(test::small_vocab_json({"he"}), "h e\n");
  const auto refused = [&](const std::string& config, const std::string& field) {
    files.config = config;
    const auto t = make_tokenizer(files);
    ASSERT_FALSE(t.ok()) << config;
    EXPECT_EQ(t.status().field(), field) << t.status().to_string();
  };
  files.config = R"({"vocab_size": 257})";
  EXPECT_TRUE(make_tokenizer(files).ok());
  files.config = R"({"vocab_size": 512})";
  EXPECT_TRUE(make_tokenizer(files).ok());
  refused(R"({"vocab_size": 256})", "vocab_size");
  refused(R"({"vocab_size": 32000})", "vocab_size");
  refused(R"({"vocab_size": "many"})", "vocab_size");
  refused(R"({"vocab_size": 257, "eos_token_id": 257})", "eos_token_id");
  refused(R"({"eos_token_id": "x"})", "config.json");
}

TEST(MalformedFilesTest, Ranks) {
  const auto ranks = [](const std::string& text) {
    TokenizerFiles files;
    files.tokenizer_model = text;
    files.config = R"({"model_type": "llama"})";
    return files;
  };
  std::string good;
  for (int byte = 0; byte < 256; ++byte) {
    static const std::string kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    good += {kDigits[static_cast<std::size_t>(byte >> 2)],
             kDigits[static_cast<std::size_t>((byte & 3) << 4)], '=', '='};
    good += " " + std::to_string(byte) + "\n";
  }
  const auto loaded = make_tokenizer(ranks(good + "aGU= 256\n"));
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ((*loaded)->encode("he"), (std::vector<std::int32_t>{256}));
  expect_refused(ranks(good + "aGU 256\n"), "tokenizer.model", "line 257");
  expect_refused(ranks(good + "a*U= 256\n"), "tokenizer.model", "bad base64");
  expect_refused(ranks(good + "aGU= x\n"), "tokenizer.model", "base64 rank");
  expect_refused(ranks(good + "aGU= 0\n"), "tokenizer.model", "given twice");
  expect_refused(ranks(good + "AA== 256\n"), "tokenizer.model", "same bytes");
  expect_refused(ranks(good + "aGU= 99999999\n"), "tokenizer.model", "absurdly high");
  expect_refused(ranks("aGU= 0\n"), "tokenizer.model", "no token stands for byte");
  expect_refused(ranks(""), "tokenizer.model", "empty");
  expect_refused(ranks("garbage"), "tokenizer.model", "neither");
  TokenizerFiles unknown = ranks(good);
  unknown.config.reset();
  expect_refused(unknown, "tokenizer.model", "unknown family");
}

TEST(MalformedFilesTest, TokenizerJson) {
  const auto json = [](const std::string& text) {
    TokenizerFiles files;
    files.tokenizer_json = text;
    return files;
  };
  const std::string byte_level =
      R"("pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false})";
  const std::string vocab = test::small_vocab_json({"he"});
  const auto model = [&](const std::string& merges, const std::string& more = "") {
    return json("{" + byte_level + more + R"(, "model": {"type": "BPE", "vocab": )" + vocab +
                ", \"merges\": " + merges + "}}");
  };
  ASSERT_TRUE(make_tokenizer(model(R"(["h e"])")).ok())
      << make_tokenizer(model(R"(["h e"])")).status().to_string();
  ASSERT_TRUE(make_tokenizer(model(R"([["h", "e"]])")).ok());
  expect_refused(json("{"), "tokenizer.json", "invalid JSON");
  expect_refused(json("{} x"), "tokenizer.json", "more text");
  expect_refused(json("{}"), "tokenizer.json", "no 'model'");
  expect_refused(json(R"({"model": {"type": "Unigram"}})"), "tokenizer.json", "Unigram");
  expect_refused(json("{" + byte_level + R"(, "model": {"type": "BPE"}})"), "tokenizer.json",
                 "model.vocab");
  expect_refused(model(R"(["h x"])"), "tokenizer.json", "merge 0");
  expect_refused(model(R"(["hx"])"), "tokenizer.json", "two pieces");
  expect_refused(model("[1]"), "tokenizer.json", "two pieces");
  expect_refused(model(R"(["h e"])", R"(, "added_tokens": [{"content": "x"}])"), "tokenizer.json",
                 "added_tokens");
  expect_refused(model(R"(["h e"])", R"(, "added_tokens": [{"id": 5, "content": "<x>"}])"),
                 "tokenizer.json", "id 5");
  expect_refused(model(R"(["h e"])", R"(, "normalizer": {"type": "Lowercase"})"), "tokenizer.json",
                 "Lowercase");
  expect_refused(
      json(R"({"pre_tokenizer": {"type": "Whitespace"}, "model": {"vocab": {}, "merges": []}})"),
      "tokenizer.json", "Whitespace");
  const std::string bad_regex =
      R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {)"
      R"("Regex": "(x"},
    "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": false}]}, "model": {"vocab": )" +
      vocab + R"(, "merges": ["h e"]}})";
  expect_refused(json(bad_regex), "tokenizer.json", "does not compile");
  expect_refused(json(std::string(100, '[') + std::string(100, ']')), "tokenizer.json",
                 "invalid JSON");
}

TEST(MalformedFilesTest, SentencepieceModels) {
  const auto real = test::slurp(std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / "demo" /
                                "tokenizer.model");
  if (!real) GTEST_SKIP() << "models/demo has no tokenizer";
  const auto spm = [](std::string bytes) {
    TokenizerFiles files;
    files.tokenizer_model = std::move(bytes);
    return files;
  };
  ASSERT_TRUE(make_tokenizer(spm(*real)).ok());
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{7}, std::size_t{1000}, real->size() / 2, real->size() - 1}) {
    const auto t = make_tokenizer(spm(real->substr(0, size)));
    ASSERT_FALSE(t.ok()) << "accepted " << size << " bytes";
    EXPECT_NE(t.status().message().find("tokenizer.model"), std::string::npos)
        << t.status().to_string();
  }
  expect_refused(spm("\n"), "tokenizer.model", "truncated");
  expect_refused(spm(std::string("\n\xFF\xFF\xFF\xFF\x7F", 6)), "tokenizer.model", "truncated");
  const auto message = [](char field, const std::string& bytes) {
    return std::string(1, field) + static_cast<char>(bytes.size()) + bytes;
  };
  const auto piece = [&](const std::string& text, char type) {
    return message(0x0A, message(0x0A, text) + "\x18" + type);
  };
  expect_refused(spm(piece("<unk>", 2) + piece("a", 1) + piece("a", 1)), "tokenizer.model",
                 "appears twice");
  expect_refused(spm(piece("a", 1)), "tokenizer.model", "unknown pieces");
  expect_refused(spm(piece("<unk>", 9)), "tokenizer.model", "unknown type");
  expect_refused(spm(piece("<unk>", 2) + piece("x", 6)), "tokenizer.model", "byte piece");
  expect_refused(spm(message(0x0A, "\x18\x01")), "tokenizer.model", "piece 0 is empty");
  // The trie of this character map points outside itself.
  const std::string trie("\x08\x00\x00\x00\x00\xFF\xFF\x7F\x00\x00\x00\x00x\x00", 14);
  expect_refused(spm(piece("<unk>", 2) + piece("a", 1) + message(0x1A, message(0x12, trie))),
                 "tokenizer.model", "character map");
}

TEST(MalformedFilesTest, Folders) {
  const auto root = std::filesystem::path(::testing::TempDir()) / "quire_tokenizer_test_folder";
  std::filesystem::remove_all(root);
  EXPECT_EQ(load_tokenizer(root).code(), Code::kNotFound);
  std::filesystem::create_directories(root);
  const auto empty = load_tokenizer(root);
  EXPECT_EQ(empty.code(), Code::kNotFound);
  EXPECT_NE(empty.status().message().find("tokenizer.model"), std::string::npos);
  std::ofstream(root / "tokenizer.json") << "{";
  const auto broken = load_tokenizer(root);
  EXPECT_EQ(broken.code(), Code::kInvalidArgument);
  EXPECT_NE(broken.status().message().find(root.string()), std::string::npos)
      << broken.status().to_string();
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace quire
