/// This file declares memory for values, on huge pages where the system has them.
///
/// A disk reads into scattered small pages more slowly than into few large ones (a virtual disk of
/// 2 GB/s by a third), and memory that is new to the process has to be cleared first. Several
/// values of one size therefore share a slab of huge pages, and freed memory is used again.
#pragma once

#include <cstddef>
#include <memory>

namespace quire {

class ValueSlab;

/// Gives memory back. Threads: any.
struct FreeValueMemory {
  ValueSlab* slab = nullptr;  ///< null: the memory came from malloc()
  void operator()(std::byte* memory) const;
};
using ValueMemory = std::unique_ptr<std::byte, FreeValueMemory>;

/// Returns at least `bytes` of memory, whose content is undefined. From 48 KiB on it begins at a
/// page of 4 KiB; up to 8 MiB it shares a slab with up to 31 others of as many pages. Slabs without
/// a value are kept up to 64 MiB in all. Threads: any. Throws std::bad_alloc.
ValueMemory allocate_value_memory(std::size_t bytes);

/// Returns memory of `bytes` that begins at a huge page and lies on huge pages where the system has
/// them; null if there is none. free_huge_pages() takes the same `bytes`. Threads: any.
std::byte* allocate_huge_pages(std::size_t bytes);
void free_huge_pages(std::byte* memory, std::size_t bytes);

}  // namespace quire
