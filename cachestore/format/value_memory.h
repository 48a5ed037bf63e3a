/// This file declares memory for values, on huge pages where the system has them.
///
/// A disk reads into scattered small pages more slowly than into few large ones (a virtual disk of
/// 2 GB/s by a third), and memory that is new to the process has to be cleared first. Values of all
/// sizes therefore share arenas of huge pages, and freed memory is used again.
#pragma once

#include <cstddef>
#include <memory>

#include "cachestore/format/value_memory_source.h"

namespace quire {

class ValueArena;

/// Gives memory back. Threads: any.
struct FreeValueMemory {
  ValueArena* arena = nullptr;  ///< null: the memory came from the source, or from malloc()
  std::size_t pages = 0;        ///< of 4 KiB, in the arena
  std::shared_ptr<ValueMemorySource> source = nullptr;
  void operator()(std::byte* memory) const;
};
using ValueMemory = std::unique_ptr<std::byte, FreeValueMemory>;

/// Returns at least `bytes` of memory, whose content is undefined. From 48 KiB on it begins at a
/// page of 4 KiB; up to 8 MiB it lies in an arena, in whole pages. Huge pages without a value are
/// kept up to 64 MiB, others go back to the system. Threads: any. Throws std::bad_alloc.
ValueMemory allocate_value_memory(std::size_t bytes);

}  // namespace quire
