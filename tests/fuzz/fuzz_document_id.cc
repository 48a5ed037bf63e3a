// Every path gives an allowed id, always the same, and patterns end whatever they are.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "ingest/document/document_id.h"
#include "server/commands/files/glob.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  const std::string_view path(reinterpret_cast<const char*>(data), size < 4096 ? size : 4096);
  const std::string id = document_id_of_path(path);
  if (!is_document_id(id) || id != document_id_of_path(path)) std::abort();
  const auto middle = path.size() / 2;
  (void)filter_matches(path.substr(0, middle), path.substr(middle));
  if (!path.empty() && !is_glob(path) && !glob_matches(path, path)) std::abort();
  return 0;
}
