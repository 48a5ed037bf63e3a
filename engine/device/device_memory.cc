#include "engine/device/device_memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "engine/device/staged_view.h"
#include "kernels/cuda/runtime/memory_pool.h"

namespace quire {
namespace {

constexpr std::int64_t kLeastChunk = std::int64_t{1} << 20;
/// The bytes that a read or write of the host copies at once.
constexpr std::int64_t kPiece = std::int64_t{8} << 20;
/// The bytes of arguments, put since the device was last idle, at which begin() synchronizes
/// outside steps.
constexpr std::int64_t kMostPut = std::int64_t{64} << 20;

}  // namespace

DeviceMemory::DeviceMemory(std::shared_ptr<cuda::DeviceOps> ops,
                           std::shared_ptr<PinnedValues> values)
    : ops_(std::move(ops)), values_(std::move(values)) {
  for (std::int32_t event = cuda::kEvents; event-- > 0;) free_events_.push_back(event);
  // The room belongs to this object, so that it does not keep it alive.
  copies_ = std::make_unique<CopyRoom>(
      std::shared_ptr<DeviceMemory>(std::shared_ptr<DeviceMemory>(), this));
}

DeviceMemory::~DeviceMemory() {
  copies_.reset();
  if (freed_.empty()) return;
  const Status settled = ops_->synchronize();
  for (const Freed& freed : freed_) release_now(freed, settled);
}

/// CopyRoom is what the copies of a DeviceMemory need: arguments, and pinned memory to read into.
struct CopyRoom {
  explicit CopyRoom(const std::shared_ptr<DeviceMemory>& memory)
      : stage(memory), read(memory, cuda::MemoryKind::kPinned) {}
  ArgumentStage stage;
  DeviceBuffer read;
};

Status DeviceMemory::gather(const KvGatherArgs& rows) {
  if (rows.num_moves == 0) return {};
  QUIRE_ASSIGN_OR_RETURN(const KvGatherArgs there, staged_gather(copies_->stage, rows));
  return run(cuda::GatherRowsArgs{there, cuda::Lane::kCompute});
}

Status DeviceMemory::read(const void* from, std::int64_t bytes, void* to) {
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const std::int64_t n = std::min(kPiece, bytes - begin);
    QUIRE_RETURN_IF_ERROR(copies_->read.reserve(n));
    QUIRE_RETURN_IF_ERROR(
        run(cuda::CopyArgs{copies_->read.data(), static_cast<const std::byte*>(from) + begin, n}));
    QUIRE_RETURN_IF_ERROR(synchronize());
    std::memcpy(static_cast<std::byte*>(to) + begin, copies_->read.data(), to_size(n));
  }
  return {};
}

Status DeviceMemory::write(void* to, const void* from, std::int64_t bytes) {
  for (std::int64_t begin = 0; begin < bytes; begin += kPiece) {
    const std::span piece(static_cast<const std::byte*>(from) + begin,
                          to_size(std::min(kPiece, bytes - begin)));
    QUIRE_RETURN_IF_ERROR(copies_->stage.begin());
    QUIRE_ASSIGN_OR_RETURN(const std::byte* staged, copies_->stage.put(piece));
    QUIRE_RETURN_IF_ERROR(copies_->stage.send());
    QUIRE_RETURN_IF_ERROR(
        run(cuda::CopyArgs{static_cast<std::byte*>(to) + begin, staged, count_of(piece)}));
  }
  return {};
}

Status DeviceMemory::synchronize() {
  if (!pending()) return {};
  const Status left = leave_step();
  // Also after a step that failed: what it enqueued before has run then.
  const Status settled = settle();
  return left.ok() ? settled : left;
}

Status DeviceMemory::settle() {
  if (!pending()) return {};
  const std::uint64_t covered = enqueued_.load(std::memory_order_acquire);
  std::vector<Freed> freed;
  {
    std::lock_guard lock(mu_);
    // What is in the list belongs to steps that have ended, unless one is recorded even now.
    if (!freed_.empty() && !recorded_.load(std::memory_order_acquire)) freed.swap(freed_);
  }
  const Status settled = ops_->synchronize();
  for (const Freed& one : freed) release_now(one, settled);
  QUIRE_RETURN_IF_ERROR(settled);
  std::uint64_t before = settled_.load(std::memory_order_acquire);
  while (before < covered &&
         !settled_.compare_exchange_weak(before, covered, std::memory_order_acq_rel)) {
  }
  return {};
}

std::int32_t DeviceMemory::take_event() {
  std::lock_guard lock(mu_);
  if (free_events_.empty()) return -1;
  const std::int32_t event = free_events_.back();
  free_events_.pop_back();
  return event;
}

void DeviceMemory::give_event(std::int32_t event) {
  if (event < 0) return;
  std::lock_guard lock(mu_);
  free_events_.push_back(event);
}

void DeviceMemory::begin_step(std::int64_t rows, std::int64_t ahead) {
  std::thread::id nobody{};
  if (!stepping_.compare_exchange_strong(nobody, std::this_thread::get_id())) return;
  {
    const std::lock_guard lock(mu_);
    left_ = {};
  }
  step_.begin(rows, ahead);
  if (!step_.active()) stepping_.store({}, std::memory_order_release);
}

Status DeviceMemory::end_step() {
  if (!within_step()) {
    const std::lock_guard lock(mu_);
    return left_by_ == std::this_thread::get_id() ? std::exchange(left_, {}) : Status();
  }
  const Status status = step_.end(*ops_);
  count_enqueued();
  recorded_.store(false, std::memory_order_release);
  stepping_.store({}, std::memory_order_release);
  return status;
}

Status DeviceMemory::upload(const cuda::CopyArgs& arguments) {
  if (!within_step()) return run(arguments);
  recorded_.store(true, std::memory_order_release);
  step_.add_upload(arguments);
  return {};
}

Status DeviceMemory::leave_step() {
  if (!within_step()) return {};
  const Status status = step_.interrupt(*ops_);
  if (!status.ok()) {
    // The caller may be one sequence of many, and the rest of the step goes on without what was
    // refused.
    const std::lock_guard lock(mu_);
    left_ = status;
    left_by_ = std::this_thread::get_id();
  }
  count_enqueued();
  recorded_.store(false, std::memory_order_release);
  stepping_.store({}, std::memory_order_release);
  return status;
}

Result<std::int64_t> DeviceMemory::budget(std::int64_t wanted, const char* setting) {
  QUIRE_ASSIGN_OR_RETURN(const cuda::MemoryInfo info, ops_->memory());
  return cuda::pool_budget(info, wanted, setting);
}

void DeviceMemory::give_back(cuda::MemoryKind kind, void* p) {
  if (!within_step()) {
    std::lock_guard lock(mu_);
    if (recorded_.load(std::memory_order_acquire)) return freed_.push_back({kind, p});
  } else if (pending()) {
    (void)leave_step();  // end_step() says how that went
  }
  release_now({kind, p}, settle());
}

void DeviceMemory::release_now(const Freed& freed, Status settled) {
  if (settled.ok()) settled = ops_->release(freed.kind, freed.p);
  if (!settled.ok())
    log_warning("memory of the device could not be given back",
                {{"kind", cuda::memory_kind_name(freed.kind)}, {"reason", settled.to_string()}});
}

Status DeviceBuffer::reserve(std::int64_t bytes) {
  if (bytes <= bytes_) return {};
  drop();
  QUIRE_ASSIGN_OR_RETURN(data_, memory_->ops().allocate(kind_, bytes));
  bytes_ = bytes;
  return {};
}

void DeviceBuffer::drop() {
  if (data_ != nullptr) memory_->give_back(kind_, data_);
  data_ = nullptr;
  bytes_ = 0;
}

Status ArgumentStage::begin() {
  std::int64_t used = 0;
  for (const auto& chunk : chunks_) used += chunk->used;
  if (used >= kMostPut && !memory_->within_step()) QUIRE_RETURN_IF_ERROR(memory_->synchronize());
  if (memory_->pending()) return {};
  if (chunks_.size() > 1) {  // replace them by one chunk that holds everything
    chunks_.clear();
    QUIRE_RETURN_IF_ERROR(add_chunk(std::max(used + used / 8, std::min(used * 2, kMostPut))));
  }
  for (const auto& chunk : chunks_) chunk->used = chunk->sent = 0;
  return {};
}

Status ArgumentStage::add_chunk(std::int64_t bytes) {
  auto chunk = std::make_unique<Chunk>(memory_);
  const std::int64_t size = std::max(kLeastChunk, bytes);
  QUIRE_RETURN_IF_ERROR(chunk->pinned.reserve(size));
  QUIRE_RETURN_IF_ERROR(chunk->device.reserve(size));
  chunks_.push_back(std::move(chunk));
  return {};
}

Result<ArgumentStage::Room> ArgumentStage::room(std::int64_t bytes, std::int64_t room) {
  const std::int64_t rounded = (bytes + room - 1) / room * room;
  if (chunks_.empty() || chunks_.back()->used + rounded > chunks_.back()->pinned.bytes())
    QUIRE_RETURN_IF_ERROR(add_chunk(rounded));
  Chunk& chunk = *chunks_.back();
  const std::int64_t at = std::exchange(chunk.used, chunk.used + rounded);
  return Room{chunk.pinned.data() + at, chunk.device.data() + at};
}

Result<void*> ArgumentStage::put_bytes(const void* values, std::int64_t bytes, std::int64_t room) {
  QUIRE_ASSIGN_OR_RETURN(const Room taken, this->room(bytes, room));
  if (bytes > 0) std::memcpy(taken.write, values, to_size(bytes));
  return static_cast<void*>(taken.address);
}

Status ArgumentStage::write_bytes(void* to, const void* values, std::int64_t bytes) {
  if (bytes == 0) return {};
  // The arrays keep their places in both kinds of memory; only the pinned one is read.
  QUIRE_ASSIGN_OR_RETURN([[maybe_unused]] const void* unused, put_bytes(values, bytes, kAlignment));
  Chunk& chunk = *chunks_.back();
  const std::int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return memory_->run(cuda::CopyArgs{to, chunk.pinned.data() + chunk.used - rounded, bytes});
}

Status ArgumentStage::send() {
  for (const auto& chunk : chunks_) {
    if (chunk->sent == chunk->used) continue;
    QUIRE_RETURN_IF_ERROR(
        memory_->upload({chunk->device.data() + chunk->sent, chunk->pinned.data() + chunk->sent,
                         chunk->used - chunk->sent}));
    chunk->sent = chunk->used;
  }
  return {};
}

}  // namespace quire
