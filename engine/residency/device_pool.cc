#include "engine/residency/device_pool.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {
constexpr std::align_val_t kAlignment{64};
}

PoolMemory::PoolMemory(PoolMemory&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

PoolMemory& PoolMemory::operator=(PoolMemory&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PoolMemory::~PoolMemory() {
  if (pool_ == nullptr) return;
  if (pool_->memory_ != nullptr)
    pool_->memory_->release(data_, MemoryPlace::kDevice);
  else
    ::operator delete(data_, kAlignment);
  pool_->give_back(size_);
}

DeviceClaim::DeviceClaim(DeviceClaim&& other) noexcept
    : pool_(std::exchange(other.pool_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceClaim& DeviceClaim::operator=(DeviceClaim&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceClaim::~DeviceClaim() {
  if (pool_ != nullptr) pool_->give_back(bytes_);
}

Status DeviceClaim::resize(std::int64_t bytes) {
  if (bytes > bytes_) QUIRE_RETURN_IF_ERROR(pool_->take(bytes - bytes_));
  if (bytes < bytes_) pool_->give_back(bytes_ - bytes);
  bytes_ = bytes;
  return {};
}

Status DevicePool::take(std::int64_t bytes) {
  const std::lock_guard lock(mu_);
  if (max_bytes_ > 0 && bytes > max_bytes_ - in_use_) {
    return Status::exhausted("what is decoded needs " + std::to_string(bytes) +
                             " bytes of device memory, " + std::to_string(in_use_) + " of " +
                             std::to_string(max_bytes_) + " are in use");
  }
  in_use_ += bytes;
  peak_ = std::max(peak_, in_use_);
  return {};
}

Result<PoolMemory> DevicePool::allocate(std::int64_t bytes) {
  QUIRE_RETURN_IF_ERROR(take(bytes));
  PoolMemory buffer;
  if (memory_ != nullptr) {
    const Result<void*> given = memory_->allocate(bytes, MemoryPlace::kDevice);
    if (!given.ok()) {
      give_back(bytes);
      return given.status();
    }
    buffer.data_ = static_cast<std::byte*>(*given);
    buffer.pool_ = this;
    buffer.size_ = bytes;
    return buffer;
  }
  buffer.data_ = static_cast<std::byte*>(::operator new(to_size(bytes), kAlignment, std::nothrow));
  if (buffer.data_ == nullptr) {
    give_back(bytes);
    return Status::exhausted("no memory for " + std::to_string(bytes) +
                             " bytes of retrieved pages");
  }
  buffer.pool_ = this;
  buffer.size_ = bytes;
  std::memset(buffer.data_, 0, to_size(bytes));
  return buffer;
}

void DevicePool::give_back(std::int64_t bytes) {
  const std::lock_guard lock(mu_);
  in_use_ -= bytes;
}

std::int64_t DevicePool::bytes_in_use() const {
  const std::lock_guard lock(mu_);
  return in_use_;
}

std::int64_t DevicePool::peak_bytes() const {
  const std::lock_guard lock(mu_);
  return peak_;
}

}  // namespace quire
