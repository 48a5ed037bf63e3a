// SmolLM2's vocabulary from its GGUF file agrees with the Python package tokenizers
// (make_smollm2_golden.py).
#include "tests/support/smollm2.h"

#include <openssl/evp.h>
#include <zlib.h>

#include <boost/json.hpp>

#include "engine/chat/chat_template.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

namespace json = boost::json;
namespace fs = std::filesystem;

json::object golden() {
  const auto text = test::slurp(fs::path(QUIRE_SOURCE_DIR) /
                                "tests/unit/engine/tokenizer/smollm2_tokens.json");
  return text ? json::parse(*text).as_object() : json::object();
}

/// Returns the contents of a file, decompressed if it is gzip.
std::string contents(const fs::path& path) {
  std::string out;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return out;
  char buffer[1 << 16];
  for (int n = 0; (n = gzread(file, buffer, sizeof buffer)) > 0;)
    out.append(buffer, static_cast<std::size_t>(n));
  gzclose(file);
  return out;
}

/// Hashes the ids of lines as the script does, and checks the offsets of every 16th line.
class LineDigest {
 public:
  explicit LineDigest(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), context_(EVP_MD_CTX_new()) {
    EVP_DigestInit_ex(context_, EVP_sha256(), nullptr);
  }
  ~LineDigest() { EVP_MD_CTX_free(context_); }

  void add(std::string_view line) {
    std::vector<std::int32_t> ids = tokenizer_.encode(line);
    if (lines_++ % 16 == 0) check_places(line, ids);
    num_ids_ += static_cast<std::int64_t>(ids.size());
    ids.push_back(-1);
    EVP_DigestUpdate(context_, ids.data(), ids.size() * sizeof(std::int32_t));
  }
  void expect(const json::value& expected, const std::string& name) {
    unsigned char digest[32];
    EVP_DigestFinal_ex(context_, digest, nullptr);
    std::string hex;
    for (const unsigned char byte : digest) {
      for (const int digit : {byte >> 4, byte & 15}) hex.push_back("0123456789abcdef"[digit]);
    }
    EXPECT_EQ(num_ids_, expected.at("ids").to_number<std::int64_t>()) << name;
    EXPECT_EQ(hex, std::string(expected.at("sha256").as_string())) << name;
  }

 private:
  void check_places(std::string_view line, const std::vector<std::int32_t>& ids) const {
    const Encoding encoding = tokenizer_.encode_with_offsets(line);
    ASSERT_EQ(encoding.ids, ids);
    std::uint32_t at = 0;
    for (const TokenSpan& span : encoding.spans) {
      ASSERT_EQ(span.begin, at);
      ASSERT_LE(span.begin, span.end);
      at = span.end;
    }
    ASSERT_EQ(at, ids.empty() ? 0 : line.size());
  }

  const Tokenizer& tokenizer_;
  EVP_MD_CTX* context_;
  std::int64_t lines_ = 0, num_ids_ = 0;
};

std::string utf8(char32_t c) {
  const auto byte = [](unsigned value) { return static_cast<char>(value); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)),
          byte(0x80 | (c & 63))};
}

class SmolLm2Test : public ::testing::Test {
 protected:
  void SetUp() override {
    QUIRE_SMOLLM2_FILE(file);
    path_ = *file;
    auto tokenizer = load_tokenizer(path_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    tokenizer_ = std::move(*tokenizer);
    golden_ = golden();
  }
  fs::path path_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  json::object golden_;
};

TEST_F(SmolLm2Test, ShortTextsHaveTheExpectedIds) {
  for (const json::value& v : golden_.at("short").as_array()) {
    const std::string text(v.at("text").as_string());
    std::vector<std::int32_t> expected;
    for (const json::value& id : v.at("ids").as_array())
      expected.push_back(id.to_number<std::int32_t>());
    if (text.find("<|im_start|>") != std::string::npos) {
      // Control tokens are separate from text here; the package merges the characters of both.
      EXPECT_EQ(tokenizer_->encode(text), expected) << text;
      EXPECT_EQ(tokenizer_->encode(text, Special::kParse).front(), 1);
      continue;
    }
    EXPECT_EQ(tokenizer_->encode(text), expected) << text;
  }
}

TEST_F(SmolLm2Test, EveryUnicodeBlockHasTheExpectedIds) {
  const json::object& expected = golden_.at("unicode").as_object();
  ASSERT_EQ(expected.size(), 272U);
  for (char32_t start = 0; start < 0x110000; start += 4096) {
    LineDigest digest(*tokenizer_);
    for (char32_t block = start; block < start + 4096; block += 256) {
      std::string all, apart;
      for (char32_t c = block; c < block + 256; ++c) {
        if (c >= 0xD800 && c < 0xE000) continue;
        const std::string one = utf8(c);
        all += one;
        apart += "a" + one + one + " " + one + "1";
      }
      digest.add(all);
      digest.add(apart);
    }
    char name[8];
    std::snprintf(name, sizeof name, "%06X", static_cast<unsigned>(start));
    digest.expect(expected.at(name), name);
  }
}

TEST_F(SmolLm2Test, EveryTextOfTheDataHasTheExpectedIds) {
  const fs::path data(QUIRE_SHARED_DATA_DIR);
  if (!fs::is_directory(data)) GTEST_SKIP() << "no data beside the repository";
  for (const auto& entry : golden_.at("files").as_object()) {
    const std::string name(entry.key());
    if (!fs::exists(data / name)) continue;
    const std::string text = contents(data / name);
    LineDigest digest(*tokenizer_);
    for (std::size_t at = 0; at <= text.size();) {
      const std::size_t end = std::min(text.find('\n', at), text.size());
      digest.add(std::string_view(text).substr(at, end - at));
      at = end + 1;
    }
    digest.expect(entry.value(), name);
  }
}

TEST_F(SmolLm2Test, BytesWithoutATokenAreDroppedAndTheirPlaceGoesToANeighbour) {
  EXPECT_EQ(tokenizer_->encode("\x04"), std::vector<std::int32_t>());
  const Encoding two = tokenizer_->encode_with_offsets(
      "a\x04"
      "b");
  EXPECT_EQ(two.ids.size(), 2U);
  EXPECT_EQ(two.spans, (std::vector<TokenSpan>{{0, 1}, {1, 3}}));
  // U+40000 begins with a byte that has no token; the three bytes after it have one.
  const Encoding rare = tokenizer_->encode_with_offsets("!\xF1\x80\x80\x80!");
  EXPECT_EQ(rare.ids, tokenizer_->encode("!\xF1\x80\x80\x80!"));
  ASSERT_FALSE(rare.spans.empty());
  EXPECT_EQ(rare.spans.back().end, 6U);
  EXPECT_EQ(tokenizer_->encode("\xFF\xFE ok").size(), tokenizer_->encode(" ok").size())
      << "broken UTF-8";
}

TEST_F(SmolLm2Test, ControlTokensAndEndsAreThoseOfTheFile) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(tokenizer_->eos_ids(), (std::vector<std::int32_t>{0, 2}))
      << "<|endoftext|>, <|im_end|>";
  EXPECT_FALSE(tokenizer_->add_bos());
  for (std::int32_t id = 0; id < 17; ++id) EXPECT_TRUE(tokenizer_->is_special(id)) << id;
  EXPECT_FALSE(tokenizer_->is_special(17));
  EXPECT_EQ(tokenizer_->token_id("<|im_end|>"), 2);
  const std::string text = "The caf\xC3\xA9 opens at 9:30.\n";
  EXPECT_EQ(tokenizer_->decode(tokenizer_->encode(text)), text);
}

TEST_F(SmolLm2Test, ThePromptFormatComesFromTheTemplateInTheFile) {
  const auto format = PromptFormat::load(path_, tokenizer_);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  const auto same = PromptFormat::load(path_.parent_path(), tokenizer_);
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  const std::vector<ChatMessage> turns = {{"user", "Hi"}};
  const auto ids = format->chat(turns);
  ASSERT_TRUE(ids.ok()) << ids.status().to_string();
  const std::string shown = tokenizer_->decode(*ids, /*keep_special=*/true);
  EXPECT_NE(shown.find("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"),
            std::string::npos)
      << shown;
  EXPECT_EQ(format->stop_ids(), (std::vector<std::int32_t>{0, 2}));
}

}  // namespace
}  // namespace quire
