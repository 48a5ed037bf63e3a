/// Finds SmolLM2-135M-Instruct as a GGUF file for tests: QUIRE_SMOLLM2, or models/smollm2/*.gguf.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace quire::test {

inline std::optional<std::filesystem::path> smollm2_file() {
  namespace fs = std::filesystem;
  std::error_code error;
  if (const char* said = std::getenv("QUIRE_SMOLLM2"); said != nullptr && fs::exists(said, error))
    return fs::path(said);
  const fs::path folder = fs::path(QUIRE_SOURCE_DIR) / "models" / "smollm2";
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".gguf") return it->path();
  }
  return std::nullopt;
}

}  // namespace quire::test

/// Puts the file's path into `variable`, or skips the test.
#define QUIRE_SMOLLM2_FILE(variable)                   \
  const auto variable = ::quire::test::smollm2_file(); \
  if (!variable)                                       \
  GTEST_SKIP()                                         \
      << "SmolLM2-135M-Instruct is not here: neither QUIRE_SMOLLM2 nor models/smollm2/*.gguf"
