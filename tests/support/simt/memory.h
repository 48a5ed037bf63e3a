/// Device memory of the emulation: registered buffers, and the shared memory of one block with the
/// history of its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace quire::simt {

enum class Access { kRead, kReadWrite };

/// The buffers that a kernel may touch. An access that is not inside one of them is an error,
/// however close.
class GlobalMemory {
 public:
  /// Registers a buffer. `p` belongs to the caller and must outlive the launches. Zero bytes
  /// register nothing, and buffers may not overlap.
  void add(std::string name, const void* p, std::size_t bytes, Access access);
  /// Removes the buffer that was added at `p`.
  void remove(const void* p);
  /// Returns why these bytes may not be read (or written); empty: they may.
  std::string refuse(const void* p, std::size_t bytes, Access access) const;

 private:
  struct Buffer {
    std::uintptr_t begin, end;
    Access access;
    std::string name;
  };
  std::vector<Buffer> buffers_;  // by address, disjoint
};

/// The shared memory of one block. Two accesses to a byte by different threads, one of them a
/// write, need a barrier between them. Within one warp a barrier of the warp is enough. A read
/// needs an earlier write by the same block.
class SharedMemory {
 public:
  enum class Kind { kRead, kWrite, kAtomic };

  /// Forgets everything at the start of a block.
  void start_block(std::size_t bytes, int num_warps);
  void block_barrier() { ++block_epoch_; }
  void warp_barrier(int warp) { ++warp_epoch_[static_cast<std::size_t>(warp)]; }
  std::size_t bytes() const { return bytes_; }
  std::byte* data() { return data_.data(); }
  /// Records an access and returns why it is wrong; empty: it is right. The caller has checked the
  /// range.
  std::string access(std::size_t offset, std::size_t bytes, int thread, Kind kind);
  /// Sets whether an asynchronous copy into this range is in progress; its bytes may not be read
  /// meanwhile. They were accessed as a write.
  void set_pending(std::size_t offset, std::size_t bytes, bool pending);

 private:
  static constexpr int kNobody = -1, kSeveral = -2;
  struct Mark {
    int thread = kNobody;  // kSeveral: several readers of one warp and epoch
    int warp = kNobody;    // kSeveral: several warps
    std::uint32_t block_epoch = 0, warp_epoch = 0;
    bool atomic = false;
  };
  struct Byte {
    std::uint32_t block_number = 0;
    Mark write, read;
    bool pending = false;
  };
  bool unordered(const Mark& before, int thread) const;

  std::size_t bytes_ = 0;
  std::vector<std::byte> data_;
  std::vector<Byte> history_;
  std::vector<std::uint32_t> warp_epoch_;
  std::uint32_t block_number_ = 0, block_epoch_ = 0;
};

}  // namespace quire::simt
