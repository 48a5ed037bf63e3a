// Files of finished rows, plain or gzip, of any bytes. Accepted rows are written so that they read
// back to the last bit.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "fidelity/state_file.h"

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A folder for the one file, which is removed when the program exits.
struct Folder {
  Folder() {
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(pattern, ignored);
  }
  std::string pattern = (std::filesystem::temp_directory_path() / "quire-fuzz-XXXXXX").string();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  static const Folder folder;
  static const std::string path = folder.pattern + "/state", identity = "a run";
  static const std::string header = [] {  // written by the product
    std::filesystem::remove(path);
    if (!StateFile::open(path, identity).ok()) std::abort();
    return text_of(path);
  }();
  if (size == 0) return 0;
  // The file is rows after a right first line, or any bytes.
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      << (data[0] % 8 != 0 ? header : std::string())
      << std::string_view(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::size_t rows = 0;
  {
    const auto state = StateFile::open(path, identity);
    if (!state.ok()) std::abort();
    rows = (*state)->size();
  }
  const std::string written = text_of(path);
  const auto again = StateFile::open(path, identity);
  if (!again.ok() || (*again)->restarted() || (*again)->size() != rows || text_of(path) != written)
    std::abort();
  return 0;
}
