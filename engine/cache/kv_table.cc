#include "engine/cache/kv_table.h"

#include <utility>

namespace quire {
namespace {

constexpr std::int64_t kLeastRoom = 1024;

/// The bytes of the pages of so many rows, behind which their positions stand.
std::int64_t page_bytes(std::int64_t room) {
  return (room + kPageTokens - 1) / kPageTokens * static_cast<std::int64_t>(sizeof(void*));
}

std::int64_t room_bytes(std::int64_t room) {
  return page_bytes(room) + room * static_cast<std::int64_t>(sizeof(std::int32_t));
}

}  // namespace

std::int64_t KvTable::bytes_for(std::int64_t rows) {
  return room_bytes(std::max(rows, kLeastRoom));
}

Status KvTable::reserve(std::int64_t rows) {
  if (rows <= room_) return {};
  const std::int64_t room = std::max({rows, 2 * room_, kLeastRoom});
  if (pages_ != nullptr) outgrown_.push_back(std::exchange(pages_, nullptr));
  positions_ = nullptr;
  room_ = 0;
  rows_ = num_pages_ = 0;
  QUIRE_ASSIGN_OR_RETURN(void* const memory,
                         memory_.allocate(room_bytes(room), MemoryPlace::kDevice));
  pages_ = static_cast<const void**>(memory);
  positions_ = reinterpret_cast<std::int32_t*>(static_cast<std::byte*>(memory) + page_bytes(room));
  room_ = room;
  return {};
}

KvTable::~KvTable() {
  for (const void** const table : outgrown_) memory_.release(table, MemoryPlace::kDevice);
  if (pages_ != nullptr) memory_.release(pages_, MemoryPlace::kDevice);
}

}  // namespace quire
