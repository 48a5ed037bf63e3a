#include "cachestore/format/value_memory.h"

#include <sys/mman.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace quire {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kPagesOfHuge = kHugePage / kPage;
constexpr std::size_t kArena = 128 << 20;
constexpr std::size_t kArenaPages = kArena / kPage;
constexpr std::size_t kLeast = 48 << 10;
constexpr std::size_t kMost = 8 << 20;
constexpr std::size_t kMostKept = 64 << 20;

/// Maps memory that begins at a huge page; null if there is none.
std::byte* map_huge_pages(std::size_t bytes) {
  void* const at = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  // Aligned by hand: what lies before and after is given back.
  auto* const first = static_cast<std::byte*>(at);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) %
                             kHugePage;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePage) ::munmap(first + before + bytes, kHugePage - before);
  (void)::madvise(first + before, bytes, MADV_HUGEPAGE);  // a refusal costs only speed
  return first + before;
}

}  // namespace

/// Pages of 4 KiB on huge pages, given out in runs. Threads: one at a time.
class ValueArena {
 public:
  /// Throws std::bad_alloc.
  ValueArena() : memory_(map_huge_pages(kArena)) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~ValueArena() { ::munmap(memory_, kArena); }
  ValueArena(const ValueArena&) = delete;
  ValueArena& operator=(const ValueArena&) = delete;

  bool empty() const { return runs_ == 0; }
  /// Returns the bytes of huge pages that hold no value but were touched.
  std::size_t kept_bytes() const { return kept_ * kHugePage; }

  /// Returns the first run of so many free pages; null: there is none.
  std::byte* take(std::size_t pages) {
    if (pages > longest_) return nullptr;
    std::size_t run = 0;
    for (std::size_t i = 0; i < kArenaPages;) {
      if (i % 64 == 0) {  // 64 pages at once, where all of them are used or none is
        const std::uint64_t word = used_[i / 64];
        if (word == ~std::uint64_t{0} || (word == 0 && run + 64 < pages)) {
          run = word == 0 ? run + 64 : 0;
          i += 64;
          continue;
        }
      }
      run = (used_[i / 64] >> (i % 64) & 1) != 0 ? 0 : run + 1;
      ++i;
      if (run < pages) continue;
      mark(i - pages, pages, true);
      ++runs_;
      return memory_ + (i - pages) * kPage;
    }
    longest_ = pages - 1;
    return nullptr;
  }
  void give(std::byte* memory, std::size_t pages) {
    mark(static_cast<std::size_t>(memory - memory_) / kPage, pages, false);
    longest_ = kArenaPages;
    --runs_;
  }
  /// Gives huge pages without a value back to the system.
  void drop_kept() {
    for (std::size_t h = 0; h < huge_.size(); ++h) {
      if (huge_[h].used > 0 || !huge_[h].touched) continue;
      (void)::madvise(memory_ + h * kHugePage, kHugePage, MADV_DONTNEED);
      huge_[h].touched = false;
      --kept_;
    }
  }

 private:
  struct Huge {
    std::size_t used = 0;  ///< pages in runs
    bool touched = false;
  };

  void mark(std::size_t first, std::size_t pages, bool used) {
    for (std::size_t i = first; i < first + pages; ++i) {
      used_[i / 64] ^= std::uint64_t{1} << (i % 64);
      Huge& h = huge_[i / kPagesOfHuge];
      if (used) {
        if (h.used++ == 0 && h.touched) --kept_;
        h.touched = true;
      } else if (--h.used == 0) {
        ++kept_;
      }
    }
  }

  std::byte* const memory_;
  std::array<std::uint64_t, kArenaPages / 64> used_{};  // a bit a page
  std::array<Huge, kArena / kHugePage> huge_{};
  std::size_t runs_ = 0;
  std::size_t kept_ = 0;               // huge pages
  std::size_t longest_ = kArenaPages;  // no free run is longer
};

namespace {

class Arenas {
 public:
  /// Throws std::bad_alloc.
  ValueMemory take(std::size_t pages) {
    std::lock_guard lock(mu_);
    // The first arena that fits: the last ones become empty.
    for (auto& arena : arenas_) {
      const std::size_t before = arena->kept_bytes();
      if (std::byte* const memory = arena->take(pages)) {
        kept_ -= before - arena->kept_bytes();
        return ValueMemory(memory, FreeValueMemory{arena.get(), pages});
      }
    }
    arenas_.push_back(std::make_unique<ValueArena>());
    ValueArena* const arena = arenas_.back().get();
    return ValueMemory(arena->take(pages), FreeValueMemory{arena, pages});
  }
  void give(ValueArena& arena, std::byte* memory, std::size_t pages) {
    std::lock_guard lock(mu_);
    const std::size_t before = arena.kept_bytes();
    arena.give(memory, pages);
    kept_ += arena.kept_bytes() - before;
    // Those of the last arenas go first: they are used again last.
    for (std::size_t i = arenas_.size(); i-- > 0 && kept_ > kMostKept;) {
      kept_ -= arenas_[i]->kept_bytes();
      if (arenas_[i]->empty())
        arenas_.erase(arenas_.begin() + static_cast<std::ptrdiff_t>(i));
      else
        arenas_[i]->drop_kept();
    }
  }

 private:
  std::mutex mu_;
  std::vector<std::unique_ptr<ValueArena>> arenas_;  // guarded by mu_
  std::size_t kept_ = 0;                             // of all arenas; guarded by mu_
};

Arenas& arenas() {
  static auto* const all = new Arenas;  // values may outlive static objects
  return *all;
}

}  // namespace

void FreeValueMemory::operator()(std::byte* memory) const {
  if (source != nullptr)
    source->give(memory);
  else if (arena == nullptr)
    std::free(memory);
  else
    arenas().give(*arena, memory, pages);
}

ValueMemory allocate_value_memory(std::size_t bytes) {
#if !defined(__SANITIZE_ADDRESS__)  // which sees a use after the end only in memory of malloc()
  if (bytes >= kLeast && bytes <= kMost) return arenas().take((bytes + kPage - 1) / kPage);
#endif
  if (bytes > SIZE_MAX - kPage) throw std::bad_alloc();
  auto* const memory = static_cast<std::byte*>(
      bytes < kLeast ? std::malloc(bytes)
                     : std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage));
  if (memory == nullptr) throw std::bad_alloc();
  return ValueMemory(memory, FreeValueMemory{});
}

}  // namespace quire
