#include "tests/support/simt/simt.h"

#include <array>
#include <deque>
#include <vector>

#include "tests/support/simt/fiber.h"

namespace quire::simt {
namespace {

constexpr std::size_t kCopyBytes = 16;
constexpr int kMostThreads = 1024;
// What runs here runs on every device.
constexpr std::int64_t kMostSharedBytes = cuda::kPortableSharedBytes;

std::string place(Location at) {
  const std::string file = at.file_name();
  return file.substr(file.find_last_of('/') + 1) + ":" + std::to_string(at.line());
}
bool same(Location a, Location b) {
  return a.line() == b.line() && a.column() == b.column() &&
         std::strcmp(a.file_name(), b.file_name()) == 0;
}

using Fibers = std::vector<std::unique_ptr<Fiber>>;

}  // namespace

/// The block that runs. Blocks run one at a time, on one thread.
class Block {
 public:
  Block(const GlobalMemory& memory, const cuda::LaunchShape& shape, Fibers& threads)
      : memory_(memory),
        shape_(shape),
        threads_(threads),
        warps_(static_cast<std::size_t>(shape.threads / 32)) {
    while (threads_.size() < static_cast<std::size_t>(shape.threads))
      threads_.emplace_back(std::make_unique<Fiber>());
  }

  Report run(cuda::Dim3 index, const std::function<void(Device&)>& body) {
    index_ = index;
    shared_.start_block(static_cast<std::size_t>(shape_.shared_bytes), shape_.threads / 32);
    waits_.assign(static_cast<std::size_t>(shape_.threads), Wait{});
    barrier_ = {};
    copies_.resize(static_cast<std::size_t>(shape_.threads));
    for (Copies& c : copies_) c.start();
    for (Warp& w : warps_) w = {};
    ready_.clear();
    for (int t = 0; t < shape_.threads; ++t) {
      threads_[static_cast<std::size_t>(t)]->reset([this, t, &body] {
        Device device(*this, t);
        try {
          body(device);
        } catch (const Stopped&) {
        }
      });
      ready_.push_back(t);
    }
    int finished = 0;
    while (!ready_.empty() && report_.fault == Fault::kNone) {
      running_ = ready_.front();
      ready_.pop_front();
      Fiber& fiber = *threads_[static_cast<std::size_t>(running_)];
      fiber.resume();
      finished += fiber.finished();
    }
    if (report_.fault == Fault::kNone && finished < shape_.threads)
      report_ = {Fault::kDivergence, describe_stuck()};
    return report_;
  }

  const GlobalMemory& memory() const { return memory_; }
  const cuda::LaunchShape& shape() const { return shape_; }
  cuda::Dim3 index() const { return index_; }
  SharedMemory& shared() { return shared_; }
  int running() const { return running_; }

  /// Ends the launch. The running thread is unwound because its frames hold messages. The others
  /// hold nothing and are forgotten where they wait.
  [[noreturn]] void fail(Fault fault, const std::string& message, Location at) {
    fail(fault, message + ", at " + place(at));
  }
  [[noreturn]] void fail(Fault fault, const std::string& message) {
    report_ = {fault,
               "thread " + std::to_string(running_) + " of block " + block_name() + ": " + message};
    throw Stopped{};
  }

  void sync_threads(Location at) {
    if (barrier_.arrived > 0 && !same(at, barrier_.at))
      fail(Fault::kDivergence,
           "barrier at " + place(at) + " while others wait at the one at " + place(barrier_.at));
    barrier_.at = at;
    if (++barrier_.arrived < shape_.threads) return wait("the block's barrier", at);
    barrier_ = {};
    shared_.block_barrier();
    for (int t = 0; t < shape_.threads; ++t) wake(t);
  }

  void start_copy(std::size_t offset, const void* from) {
    Copies& c = copies_[static_cast<std::size_t>(running_)];
    c.under_way.push_back({c.committed, offset, {}});
    if (from != nullptr) std::memcpy(c.under_way.back().bytes.data(), from, kCopyBytes);
    shared_.set_pending(offset, kCopyBytes, true);
  }
  void commit_copies() { ++copies_[static_cast<std::size_t>(running_)].committed; }
  void finish_copies(int most_pending) {
    Copies& c = copies_[static_cast<std::size_t>(running_)];
    while (c.arrived < c.under_way.size() &&
           c.under_way[c.arrived].group < c.committed - most_pending) {
      const Copy& copy = c.under_way[c.arrived];
      shared_.set_pending(copy.offset, kCopyBytes, false);
      std::memcpy(shared_.data() + copy.offset, copy.bytes.data(), kCopyBytes);
      const std::string why = shared_.access(copy.offset, kCopyBytes, running_,
                                             SharedMemory::Kind::kWrite);
      if (!why.empty()) fail(Fault::kSharedMemory, why);
      ++c.arrived;
    }
    if (c.arrived == c.under_way.size()) {
      c.under_way.clear();
      c.arrived = 0;
    }
  }

  /// Returns the values of all lanes. With `barrier` it also orders their accesses to shared
  /// memory.
  const std::byte* exchange(const void* value, std::size_t bytes, Location at, bool barrier) {
    Warp& w = warps_[static_cast<std::size_t>(running_ / 32)];
    if (w.arrived > 0 && !same(at, w.at))
      fail(Fault::kDivergence, "warp operation at " + place(at) +
                                   " while other lanes are at the one at " + place(w.at));
    // There are two sets of slots, because a quick lane may start the next operation before a slow
    // one has read this one's values.
    auto& slots = w.slots[w.turn];
    if (bytes > 0)
      std::memcpy(slots.data() + static_cast<std::size_t>(running_ % 32) * Device::kSlotBytes,
                  value, bytes);
    w.at = at;
    if (++w.arrived < 32) {
      wait("a warp operation", at);
    } else {
      w.arrived = 0;
      w.turn ^= 1;
      if (barrier) shared_.warp_barrier(running_ / 32);
      for (int t = running_ / 32 * 32; t < running_ / 32 * 32 + 32; ++t) wake(t);
    }
    return slots.data();
  }

 private:
  struct Wait {
    const char* what = nullptr;  // null: it runs or has finished
    Location at;
  };
  struct Stopped {};
  struct Copy {
    int group;
    std::size_t offset;
    std::array<std::byte, kCopyBytes> bytes;
  };
  struct Copies {
    int committed = 0;
    std::vector<Copy> under_way;  // from `arrived` on
    std::size_t arrived = 0;
    void start() {
      committed = 0;
      under_way.clear();
      arrived = 0;
    }
  };
  struct Barrier {
    int arrived = 0;
    Location at;
  };
  struct Warp {
    int arrived = 0, turn = 0;
    Location at;
    std::array<std::array<std::byte, 32 * Device::kSlotBytes>, 2> slots;
  };

  void wait(const char* what, Location at) {
    const int self = running_;
    waits_[static_cast<std::size_t>(self)] = {what, at};
    threads_[static_cast<std::size_t>(self)]->pause();
  }
  void wake(int thread) {
    if (waits_[static_cast<std::size_t>(thread)].what == nullptr) return;
    waits_[static_cast<std::size_t>(thread)] = {};
    ready_.push_back(thread);
  }
  std::string block_name() const {
    return "(" + std::to_string(index_.x) + ", " + std::to_string(index_.y) + ", " +
           std::to_string(index_.z) + ")";
  }
  std::string describe_stuck() const {
    int first = -1, waiting = 0;
    for (int t = 0; t < shape_.threads; ++t) {
      if (waits_[static_cast<std::size_t>(t)].what == nullptr) continue;
      if (first < 0) first = t;
      ++waiting;
    }
    const Wait& w = waits_[static_cast<std::size_t>(first)];
    return "block " + block_name() + ": " + std::to_string(waiting) + " of " +
           std::to_string(shape_.threads) + " threads wait for the others, thread " +
           std::to_string(first) + " for " + w.what + " at " + place(w.at);
  }

  const GlobalMemory& memory_;
  const cuda::LaunchShape& shape_;
  cuda::Dim3 index_;
  SharedMemory shared_;
  Fibers& threads_;  // at least as many as the block has threads
  std::vector<Wait> waits_;
  std::vector<Copies> copies_;
  Barrier barrier_;
  std::vector<Warp> warps_;
  std::deque<int> ready_;
  int running_ = 0;
  Report report_;
};

int Device::block_dim() const { return block_.shape().threads; }
cuda::Dim3 Device::block_idx() const { return block_.index(); }
cuda::Dim3 Device::grid_dim() const { return block_.shape().grid; }
void Device::sync_threads(Location at) { block_.sync_threads(at); }
const std::byte* Device::exchange(const void* value, std::size_t bytes, Location at) {
  return block_.exchange(value, bytes, at, /*barrier=*/false);
}
void Device::sync_warp(Location at) { block_.exchange(nullptr, 0, at, /*barrier=*/true); }

std::uint32_t Device::ballot(bool set, Location at) {
  const std::uint32_t mine = set;
  const std::byte* all = exchange(&mine, sizeof mine, at);
  std::uint32_t out = 0;
  for (std::size_t lane = 0; lane < 32; ++lane) {
    std::uint32_t one;
    std::memcpy(&one, all + lane * kSlotBytes, sizeof one);
    out |= one << lane;
  }
  return out;
}

void Device::mma(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                 DType type, Location at) {
  const std::uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const std::byte* all = exchange(mine, sizeof mine, at);
  const auto element = [&](int owner, int reg, int half) {
    std::uint32_t word;
    std::memcpy(
        &word,
        all + static_cast<std::size_t>(owner) * kSlotBytes + static_cast<std::size_t>(reg) * 4,
        sizeof word);
    const auto bits = static_cast<std::uint16_t>(half != 0 ? word >> 16 : word);
    return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  };
  // A lane is 4 * (row % 8) + (k % 8) / 2 for a and 4 * column + (k % 8) / 2 for b. Registers go by
  // halves of rows and of k.
  const int group = lane() / 4, pair = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = group + (i / 2) * 8, column = pair * 2 + i % 2;
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int inner = (k % 8) / 2;
      sum += element((row % 8) * 4 + inner, row / 8 + (k / 8) * 2, k % 2) *
             element(column * 4 + inner, 4 + k / 8, k % 2);
    }
    d[i] = sum;
  }
}

void Device::load_matrices(std::uint32_t (&d)[4], std::int64_t offset, std::int64_t index,
                           std::int64_t count, std::size_t size, bool transposed, Location at) {
  constexpr std::int64_t kRowBytes = 16;
  const std::int64_t mine = offset + index * static_cast<std::int64_t>(size);
  if (index < 0 || mine + kRowBytes > offset + count * static_cast<std::int64_t>(size))
    block_.fail(Fault::kSharedMemory, "a row of a matrix outside the array in shared memory", at);
  if (mine % kRowBytes != 0)
    block_.fail(Fault::kSharedMemory, "a row of a matrix is not aligned to 16 bytes", at);
  const std::byte* rows = exchange(&mine, sizeof mine, at);
  // Every lane reads what it gets, so that a race with any writer of a row is found.
  const auto element = [&](int matrix, int row, int column) {
    std::int64_t start;
    std::memcpy(&start, rows + static_cast<std::size_t>(matrix * 8 + row) * kSlotBytes,
                sizeof start);
    std::uint16_t bits;
    std::memcpy(
        &bits,
        shared_bytes(block_, start + column * 2, 0, 1, sizeof bits, SharedMemory::Kind::kRead),
        sizeof bits);
    return std::uint32_t{bits};
  };
  const int line = lane() / 4, pair = lane() % 4 * 2;
  for (int m = 0; m < 4; ++m) {
    d[m] = transposed ? element(m, pair, line) | element(m, pair + 1, line) << 16
                      : element(m, line, pair) | element(m, line, pair + 1) << 16;
  }
}

void Device::start_copy(std::int64_t offset, std::int64_t index, std::int64_t count,
                        const void* from, Location at) {
  if (from != nullptr) touch(from, kCopyBytes, Access::kRead, at);
  const std::byte* to = shared_bytes(block_, offset, index, count, kCopyBytes,
                                     SharedMemory::Kind::kWrite);
  block_.start_copy(static_cast<std::size_t>(to - block_.shared().data()), from);
}
void Device::commit_copies() { block_.commit_copies(); }
void Device::finish_copies(int most_pending) { block_.finish_copies(most_pending); }

void Device::touch(const void* p, std::size_t bytes, Access access, Location at) {
  const std::string why = block_.memory().refuse(p, bytes, access);
  if (!why.empty()) block_.fail(Fault::kGlobalMemory, why, at);
}

void Device::check_shared(std::int64_t offset, std::int64_t count, std::size_t size, Location at) {
  const auto bytes = static_cast<std::int64_t>(block_.shared().bytes()),
             size_bytes = static_cast<std::int64_t>(size);
  if (offset >= 0 && count >= 0 && offset % size_bytes == 0 && offset + count * size_bytes <= bytes)
    return;
  block_.fail(Fault::kSharedMemory,
              std::to_string(count) + " elements of " + std::to_string(size) + " bytes at offset " +
                  std::to_string(offset) + " of the " + std::to_string(bytes) +
                  " bytes of shared memory in the launch",
              at);
}

std::byte* shared_bytes(Block& block, std::int64_t offset, std::int64_t index, std::int64_t count,
                        std::size_t size, SharedMemory::Kind kind) {
  if (offset < 0 || index < 0 || index >= count)
    block.fail(Fault::kSharedMemory, "index outside the array in shared memory");
  const auto at = static_cast<std::size_t>(offset) + static_cast<std::size_t>(index) * size;
  const std::string why = block.shared().access(at, size, block.running(), kind);
  if (!why.empty()) block.fail(Fault::kSharedMemory, why);
  return block.shared().data() + at;
}

Report run(const GlobalMemory& memory, const cuda::LaunchShape& shape, int most_threads,
           const std::function<void(Device&)>& body) {
  const cuda::Dim3& g = shape.grid;
  if (shape.threads <= 0 || shape.threads % 32 != 0 || shape.threads > kMostThreads ||
      shape.threads > most_threads) {
    return {Fault::kLaunch, "a block of " + std::to_string(shape.threads) +
                                " threads: the kernel is compiled for multiples of 32 up to " +
                                std::to_string(most_threads)};
  }
  if (shape.shared_bytes < 0 || shape.shared_bytes > kMostSharedBytes)
    return {Fault::kLaunch, std::to_string(shape.shared_bytes) + " bytes of shared memory"};
  if (g.x < 0 || g.y < 0 || g.z < 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
    return {Fault::kLaunch, "the grid is larger than a GPU takes"};
  // The fibers are reused, because under the thread sanitizer making one takes milliseconds.
  thread_local Fibers fibers;
  Block block(memory, shape, fibers);
  for (std::int64_t z = 0; z < g.z; ++z) {
    for (std::int64_t y = 0; y < g.y; ++y) {
      for (std::int64_t x = 0; x < g.x; ++x) {
        Report report = block.run({x, y, z}, body);
        if (report.fault != Fault::kNone) return report;
      }
    }
  }
  return {};
}

}  // namespace quire::simt
