// The places of values in a segment's file, and the filler before them, of any bytes. They are
// refused or give a whole value that lies inside the file.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "cachestore/disk/rocksdb_value_locator.h"

namespace {

constexpr std::size_t kFileBytes = 20'000;

/// A file in which every byte encodes its position; it is removed when the program exits.
struct File {
  File() {
    const int fd = ::mkstemp(path.data());
    if (fd < 0) std::abort();
    ::close(fd);
    std::string bytes(kFileBytes, '\0');
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 >> 3);
    std::ofstream(path, std::ios::binary) << bytes;
  }
  ~File() { ::unlink(path.c_str()); }
  std::string path = (std::filesystem::temp_directory_path() / "quire-fuzz-XXXXXX").string();
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;  // NOLINT
  static const File file;
  const std::string_view locator(reinterpret_cast<const char*>(data), size);
  for (const std::size_t position : {std::size_t{0}, size / 24, size, SIZE_MAX}) {
    const auto value = rocksdb_internal::read_located(file.path, locator, position,
                                                      /*direct_io=*/false);
    if (!value.ok()) continue;
    std::uint64_t header = 0;
    std::memcpy(&header, locator.data() + 1 + 12 * position, sizeof header);
    const auto stored = (*value)->stored();
    if (stored.size() > kFileBytes || header > kFileBytes - stored.size()) std::abort();
    for (std::size_t i = 0; i < stored.size(); ++i) {
      if (stored[i] != static_cast<std::byte>((header + i) * 31 >> 3)) std::abort();
    }
  }
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto stored = rocksdb_internal::skip_filler(bytes);
      !stored.empty() &&
      (stored.data() < bytes.data() || stored.data() + stored.size() != bytes.data() + size))
    std::abort();
  return 0;
}
