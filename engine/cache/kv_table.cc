#include "engine/cache/kv_table.h"

#include <cstddef>
#include <utility>

namespace quire {
namespace {

constexpr std::int64_t kLeastRoom = 1024;

}  // namespace

Status KvTable::reserve(std::int64_t rows) {
  if (rows <= room_) return {};
  const std::int64_t room = std::max({rows, 2 * room_, kLeastRoom}),
                     pages = (room + kPageTokens - 1) / kPageTokens,
                     page_bytes = pages * static_cast<std::int64_t>(sizeof(void*)),
                     bytes = page_bytes + room * static_cast<std::int64_t>(sizeof(std::int32_t));
  if (pages_ != nullptr) outgrown_.push_back(std::exchange(pages_, nullptr));
  positions_ = nullptr;
  room_ = 0;
  forget();
  QUIRE_ASSIGN_OR_RETURN(void* const memory, memory_.allocate(bytes, MemoryPlace::kDevice));
  pages_ = static_cast<const void**>(memory);
  positions_ = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(memory) + page_bytes);
  room_ = room;
  return {};
}

KvTable::~KvTable() {
  for (const void** const table : outgrown_) memory_.release(table, MemoryPlace::kDevice);
  if (pages_ != nullptr) memory_.release(pages_, MemoryPlace::kDevice);
}

}  // namespace quire
