#include "kernels/cpu/scratch.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace quire::cpu {

AlignedBuffer::AlignedBuffer(std::size_t bytes) : bytes_(bytes) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t align = bytes >= kHuge ? kHuge : 64;
  const std::size_t rounded = (bytes + align - 1) / align * align;
  if (rounded == 0) return;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(align, rounded));
  if (p == nullptr) throw std::bad_alloc();
  // This is a hint: fewer TLB misses while weights are streamed
  if (align == kHuge) (void)madvise(p, rounded, MADV_HUGEPAGE);
  data_.reset(p);
}

void AlignedBuffer::Free::operator()(std::byte* p) const { std::free(p); }

void* thread_scratch(ScratchSlot slot, std::size_t bytes) {
  thread_local AlignedBuffer buffers[static_cast<int>(ScratchSlot::kCount)];
  AlignedBuffer& buffer = buffers[static_cast<int>(slot)];
  if (buffer.size_bytes() < bytes) {
    buffer = AlignedBuffer();
    buffer = AlignedBuffer(bytes + bytes / 4);
  }
  return buffer.as<void>();
}

}  // namespace quire::cpu
