// Runs a fuzz target over files: its seeds, or an input that a fuzzer found. It also reads
// beginnings of each file (at most 64), because a truncated input must be refused like any other.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void replay(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t step = std::max<std::size_t>(1, bytes.size() / 64);
  for (std::size_t size = 0; size < bytes.size(); size += step) {
    // The copy has exactly this length, so that a read past the end is detected.
    const std::string beginning = bytes.substr(0, size);
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(beginning.data()),
                                 beginning.size());
  }
  (void)LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      replay(argv[i]);
      ++files;
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i]))
      if (entry.is_regular_file()) {
        replay(entry.path());
        ++files;
      }
  }
  std::printf("%d files read\n", files);
  if (files == 0) std::fprintf(stderr, "usage: %s FILE|FOLDER...\n", argv[0]);
  return files == 0 ? 1 : 0;
}
