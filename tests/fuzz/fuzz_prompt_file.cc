// A file of kept prompts with any bytes behind its header gives whole pages, each after the one
// that it follows, or none.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "engine/cache/prompt_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  constexpr std::int64_t kHeadBytes = 4096, kMaxBytes = 1 << 16;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                       ("quire-fuzz-" + std::to_string(::getpid()));
  const std::string path = (folder / "pages").string();
  const PromptFile::Shape shape{.fingerprint = Digest{},
                                .page = {.num_kv_heads = 1, .head_dim = 16, .dtype = DType::kF16},
                                .num_layers = 2};
  if (!PromptFile::open(path, shape, kMaxBytes).ok()) std::abort();
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(kHeadBytes);
    file.write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  }
  auto file = PromptFile::open(path, shape, kMaxBytes);
  if (!file.ok()) std::abort();
  std::set<Digest> known = {Digest{}};
  (*file)->load([&](std::int32_t slot, const PromptPage& page) {
    if (slot < 0 || slot >= (*file)->num_slots()) std::abort();
    if (page.token_ids.size() != kPageTokens) std::abort();
    if (page.rows.size() != static_cast<std::size_t>(2 * shape.page.page_bytes())) std::abort();
    if (!known.contains(page.parent)) std::abort();
    known.insert(page.key);
    return true;
  });
  file->reset();
  std::filesystem::remove_all(folder);
  return 0;
}
