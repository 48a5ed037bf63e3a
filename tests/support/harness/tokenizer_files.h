/// Real tokenizer files for tests, and small ones made by hand.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "gtest/gtest.h"

namespace quire::test {

inline std::filesystem::path shared_tokenizers() {
  return std::filesystem::path(QUIRE_SHARED_DATA_DIR) / "tokenizers";
}

inline std::optional<std::string> slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// Returns the files of a real tokenizer, named by its folder (mistral: "mistral/v1"; "qwen2.5" and
/// "qwen3" use the vocabulary of qwen2). Empty: the data are missing.
inline std::optional<TokenizerFiles> real_files(const std::string& name) {
  const auto root = shared_tokenizers();
  TokenizerFiles files;
  if (name.starts_with("mistral/")) {
    files.tokenizer_model = slurp(root / "mistral" / ("tokenizer.model." + name.substr(8)));
    return files.tokenizer_model ? std::optional(files) : std::nullopt;
  }
  if (!std::filesystem::is_directory(root / name)) return std::nullopt;
  auto read = read_tokenizer_files(root / name);
  if (!read.ok()) return std::nullopt;
  files = std::move(read).value();
  if (name == "qwen2.5" || name == "qwen3") {
    files.vocab_json = slurp(root / "qwen2" / "vocab.json");
    files.merges_txt = slurp(root / "qwen2" / "merges.txt");
  }
  if (name == "llama2") files.tokenizer_json.reset();
  return files;
}

/// Returns the tokenizer; null: the data are missing. A tokenizer that does not load fails the
/// test.
inline std::shared_ptr<const Tokenizer> real_tokenizer(const std::string& name) {
  const auto files = real_files(name);
  if (!files) return nullptr;
  auto tokenizer = make_tokenizer(*files);
  EXPECT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status().to_string();
  return tokenizer.ok() ? std::shared_ptr<const Tokenizer>(std::move(tokenizer).value()) : nullptr;
}

inline std::shared_ptr<const Tokenizer> demo_tokenizer() {
  auto tokenizer = load_tokenizer(std::filesystem::path(QUIRE_SOURCE_DIR) / "models" / "demo");
  return tokenizer.ok() ? std::shared_ptr<const Tokenizer>(std::move(tokenizer).value()) : nullptr;
}

/// Returns the character that represents a byte in byte-level vocabularies.
inline std::string byte_level_char(int byte) {
  int shifted = 0;
  for (int b = 0; b < byte; ++b)
    shifted += (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE ? 0 : 1;
  const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
                         byte >= 0xAE;
  const int cp = printable ? byte : 256 + shifted;
  if (cp < 0x80) return std::string(1, static_cast<char>(cp));
  return {static_cast<char>(0xC0 | cp >> 6), static_cast<char>(0x80 | (cp & 0x3F))};
}

inline std::string json_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

/// Returns vocab.json of the 256 bytes (id = byte) and of `pieces` from id 256 on, spelled as in
/// the file.
inline std::string small_vocab_json(const std::vector<std::string>& pieces) {
  std::string json = "{";
  for (int byte = 0; byte < 256; ++byte)
    json += json_quoted(byte_level_char(byte)) + ":" + std::to_string(byte) + ",";
  for (std::size_t i = 0; i < pieces.size(); ++i)
    json += json_quoted(pieces[i]) + ":" + std::to_string(256 + i) + ",";
  json.back() = '}';
  return json;
}

}  // namespace quire::test

/// Loads a real tokenizer, or skips the test where the data are missing.
#define QUIRE_REAL_TOKENIZER(variable, name)                 \
  const auto variable = ::quire::test::real_tokenizer(name); \
  if (variable == nullptr)                                   \
  GTEST_SKIP() << "no tokenizer data '" << (name) << "' beside the repository"
