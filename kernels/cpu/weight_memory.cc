#include "kernels/cpu/weight_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace quire::cpu {
namespace {

constexpr std::size_t kAlign = 64, kHugePage = std::size_t{2} << 20;
constexpr std::size_t kShared = std::size_t{32} << 20;  // a mapping that buffers share
constexpr std::size_t kAlone = std::size_t{8} << 20;    // a buffer from here on has its own

std::size_t rounded(std::size_t bytes, std::size_t to) {
  if (bytes > SIZE_MAX - to) throw std::bad_alloc();
  return (bytes + to - 1) / to * to;
}

/// Memory that begins at a huge page.
class Mapping {
 public:
  explicit Mapping(std::size_t bytes) : bytes_(rounded(bytes, kHugePage)) {
    void* const at = ::mmap(nullptr, rounded(bytes_ + 1, kHugePage), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    auto* const first = static_cast<std::byte*>(at);
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(at) % kHugePage) %
                               kHugePage;
    memory_ = first + before;
    // What was mapped for the alignment goes back.
    if (before > 0) ::munmap(first, before);
    if (before < kHugePage) ::munmap(memory_ + bytes_, kHugePage - before);
    (void)::madvise(memory_, bytes_, MADV_HUGEPAGE);  // a refusal costs only speed
  }
  ~Mapping() { ::munmap(memory_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Returns the next bytes; null: they do not fit.
  std::byte* take(std::size_t bytes) {
    if (bytes > bytes_ - used_) return nullptr;
    std::byte* const out = memory_ + used_;
    used_ += bytes;
    return out;
  }

 private:
  std::byte* memory_ = nullptr;
  const std::size_t bytes_;
  std::size_t used_ = 0;
};

std::shared_ptr<std::byte> alone(std::size_t bytes) {
  const auto mapping = std::make_shared<Mapping>(bytes);
  return {mapping, mapping->take(bytes)};
}

std::shared_ptr<std::byte> shared(std::size_t bytes) {
  static std::mutex mu;
  static std::weak_ptr<Mapping> last;  // which ends with the last buffer in it
  const std::lock_guard lock(mu);
  auto mapping = last.lock();
  std::byte* at = mapping ? mapping->take(bytes) : nullptr;
  if (at == nullptr) {
    mapping = std::make_shared<Mapping>(kShared);
    last = mapping;
    at = mapping->take(bytes);
  }
  return {std::move(mapping), at};
}

}  // namespace

WeightBuffer::WeightBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
#if defined(__SANITIZE_ADDRESS__)  // which sees a read past a buffer only between mappings of
                                   // malloc
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlign, rounded(bytes, kAlign)));
  if (memory == nullptr) throw std::bad_alloc();
  data_ = std::shared_ptr<std::byte>(memory, [](std::byte* p) { std::free(p); });
#else
  data_ = bytes >= kAlone ? alone(bytes) : shared(rounded(bytes, kAlign));
#endif
}

}  // namespace quire::cpu
