#include "kernels/cuda/runtime/memory_pool.h"

#include <algorithm>
#include <bit>
#include <string>

#include "base/log.h"

namespace quire::cuda {

using internal::PoolBlock;

Buffer::Buffer(Buffer&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), block_(std::exchange(other.block_, {})) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  Buffer mine(std::move(*this));  // returned to its pool at the end
  pool_ = std::exchange(other.pool_, nullptr);
  block_ = std::exchange(other.block_, {});
  return *this;
}

Buffer::~Buffer() {
  if (pool_ != nullptr) pool_->take_back(std::move(block_));
}

MemoryPool::MemoryPool(DeviceDriver& driver, MemoryKind kind, std::int64_t max_bytes)
    : driver_(driver), kind_(kind), max_bytes_(max_bytes) {
  QUIRE_CHECK(max_bytes >= 0, "a pool's limit is not negative");
}

MemoryPool::~MemoryPool() {
  QUIRE_CHECK(stats_.in_use_bytes == 0, "a buffer outlives its pool");
  (void)trim();  // a lost context has nothing to release
}

std::int64_t MemoryPool::block_bytes(std::int64_t bytes) {
  if (bytes <= kLeastBlock) return kLeastBlock;
  const auto power = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(bytes)));
  const std::int64_t step = std::clamp(power / 8, kLeastBlock / 8, kMostRounding);
  return (bytes + step - 1) / step * step;
}

Result<Buffer> MemoryPool::allocate(std::int64_t bytes, StreamHandle stream) {
  if (bytes < 0)
    return Status::invalid("bytes", "must not be negative, is " + std::to_string(bytes));
  if (bytes == 0) return Buffer();
  if (bytes > max_bytes_) {
    return Status::exhausted(std::to_string(bytes) + " bytes of " + memory_kind_name(kind_) +
                             " memory are asked for, the pool has " + std::to_string(max_bytes_) +
                             " in all");
  }
  const std::int64_t rounded = std::min(block_bytes(bytes), max_bytes_);
  PoolBlock block;
  QUIRE_ASSIGN_OR_RETURN(const bool kept, take_kept(rounded, stream, block));
  if (kept) {
    ++stats_.reuses;
  } else {
    QUIRE_ASSIGN_OR_RETURN(block, new_block(rounded));
  }
  block.requested = bytes;
  block.stream = stream;
  stats_.requested_bytes += bytes;
  stats_.in_use_bytes += block.bytes;
  return Buffer(*this, std::move(block));
}

Result<bool> MemoryPool::take_kept(std::int64_t bytes, StreamHandle stream, PoolBlock& block) {
  const auto found = kept_.find(bytes);
  if (found == kept_.end()) return false;
  Blocks& blocks = found->second;
  auto chosen = std::find_if(blocks.begin(), blocks.end(), [stream](const PoolBlock& b) {
    return b.stream.stream == stream.stream;
  });
  for (auto b = blocks.begin(); chosen == blocks.end() && b != blocks.end(); ++b) {
    QUIRE_ASSIGN_OR_RETURN(const bool over, driver_.passed(b->released.get()));
    if (over) chosen = b;
  }
  if (chosen == blocks.end()) return false;
  block = std::move(*chosen);
  blocks.erase(chosen);
  if (blocks.empty()) kept_.erase(found);
  stats_.cached_bytes -= block.bytes;
  return true;
}

Result<PoolBlock> MemoryPool::new_block(std::int64_t bytes) {
  PoolBlock block;
  block.bytes = bytes;
  QUIRE_ASSIGN_OR_RETURN(block.released, create_event(driver_));
  if (stats_.held_bytes() + bytes > max_bytes_) QUIRE_RETURN_IF_ERROR(trim());
  if (stats_.held_bytes() + bytes > max_bytes_) {
    return Status::exhausted(std::to_string(bytes) + " bytes of " + memory_kind_name(kind_) +
                             " memory are asked for, " + std::to_string(stats_.held_bytes()) +
                             " of the pool's " + std::to_string(max_bytes_) + " are in use");
  }
  ++stats_.driver_calls;
  auto data = driver_.allocate(kind_, bytes);
  if (data.code() == Code::kResourceExhausted && stats_.cached_bytes > 0) {
    QUIRE_RETURN_IF_ERROR(trim());
    ++stats_.driver_calls;
    data = driver_.allocate(kind_, bytes);
  }
  if (!data.ok())
    return data.status().with_context(std::to_string(bytes) + " bytes of " +
                                      memory_kind_name(kind_) + " memory beside " +
                                      std::to_string(stats_.in_use_bytes) + " in use");
  block.data = *data;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.held_bytes() + bytes);
  return block;
}

void MemoryPool::take_back(PoolBlock block) {
  stats_.requested_bytes -= block.requested;
  stats_.in_use_bytes -= block.bytes;
  block.requested = 0;
  if (driver_.record(block.released.get(), block.stream).ok()) {
    stats_.cached_bytes += block.bytes;
    kept_[block.bytes].push_back(std::move(block));
    return;
  }
  // No event says when the block is free, but the driver synchronizes before it frees memory.
  if (const Status s = give_up(std::move(block)); !s.ok())
    log_warning("memory could not be given back",
                {{"kind", memory_kind_name(kind_)}, {"reason", s.to_string()}});
}

Status MemoryPool::trim() {
  Status first;
  for (auto& [bytes, blocks] : kept_) {
    for (PoolBlock& block : blocks) {
      stats_.cached_bytes -= block.bytes;
      const Status s = give_up(std::move(block));
      if (first.ok()) first = s;
    }
  }
  kept_.clear();
  return first;
}

Status MemoryPool::give_up(PoolBlock block) {
  const std::int64_t bytes = block.bytes;
  Status released = driver_.release(kind_, block.data);
  if (!released.ok()) stats_.stranded_bytes += bytes;
  return released;
}

std::int64_t reserved_bytes(const MemoryInfo& memory) {
  return std::max<std::int64_t>(std::int64_t{256} << 20, memory.total_bytes / 32);
}

Result<std::int64_t> pool_budget(const MemoryInfo& memory, std::int64_t wanted,
                                 const char* setting) {
  const std::int64_t most = std::max<std::int64_t>(memory.free_bytes - reserved_bytes(memory), 0);
  if (wanted > 0 && wanted <= most) return wanted;
  if (wanted == 0 && most > 0) return most;
  const std::string holds = std::to_string(memory.free_bytes) + " of the device's " +
                            std::to_string(memory.total_bytes) +
                            " bytes are free (other processes and the weights hold the rest) and " +
                            std::to_string(reserved_bytes(memory)) + " of them stay in reserve";
  return Status(Code::kResourceExhausted,
                std::string(setting) +
                    (wanted > 0 ? " asks for " + std::to_string(wanted) + " bytes, but "
                                : " takes what is left, but ") +
                    holds + "; lower it or free memory (nvidia-smi)",
                setting);
}

}  // namespace quire::cuda
