/// HostSlab is a range of fresh host memory for data that is read with large strides.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace quire {

/// HostSlab maps zeroed memory that is aligned to a system page. Large slabs ask for huge pages,
/// which need fewer address translations; a refusal costs only speed.
class HostSlab {
 public:
  explicit HostSlab(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t kHugePage = 2 << 20;
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                          0);
    if (mapped == MAP_FAILED) return;
    data_ = mapped;
    if (bytes_ >= kHugePage) (void)::madvise(data_, bytes_, MADV_HUGEPAGE);
  }
  HostSlab(HostSlab&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  HostSlab(const HostSlab&) = delete;
  HostSlab& operator=(const HostSlab&) = delete;
  HostSlab& operator=(HostSlab&&) = delete;
  ~HostSlab() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  /// Returns the memory; null if the system had none left.
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  const std::size_t bytes_;
};

}  // namespace quire
