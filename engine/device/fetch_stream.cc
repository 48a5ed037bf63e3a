#include "engine/device/fetch_stream.h"

#include <algorithm>
#include <utility>

namespace quire {
namespace {

constexpr std::int64_t kLeastChunk = std::int64_t{1} << 20, kAlignment = 64;

}  // namespace

Result<std::byte*> FetchStream::place(std::int64_t bytes) {
  if (bytes_under_way_ > 0 && bytes_under_way_ + bytes > kMostUnderWay)
    QUIRE_RETURN_IF_ERROR(deliver());
  Slot& slot = slots_[next_];
  QUIRE_RETURN_IF_ERROR(slot.device.reserve(bytes));
  QUIRE_RETURN_IF_ERROR(memory_->run(cuda::HoldArgs{slot.copied.number(), cuda::Lane::kCompute}));
  return slot.device.data();
}

Result<std::byte*> FetchStream::pinned(std::int64_t bytes) {
  const std::int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  for (const auto& chunk : chunks_) {
    if (chunk->used + rounded > chunk->pinned.bytes()) continue;
    return chunk->pinned.data() + std::exchange(chunk->used, chunk->used + rounded);
  }
  auto chunk = std::make_unique<Chunk>(memory_);
  QUIRE_RETURN_IF_ERROR(chunk->pinned.reserve(std::max(kLeastChunk, rounded)));
  chunk->used = rounded;
  chunks_.push_back(std::move(chunk));
  return chunks_.back()->pinned.data();
}

Status FetchStream::fetch(std::int64_t bytes, Fetched then) {
  Slot& slot = slots_[next_];
  QUIRE_ASSIGN_OR_RETURN(std::byte* const to, pinned(bytes));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::RecordEventArgs{slot.written.number(), cuda::Lane::kCompute}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::HoldArgs{slot.written.number(), cuda::Lane::kDownloads}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::CopyAsyncArgs{to, slot.device.data(), bytes, cuda::Lane::kDownloads}));
  QUIRE_RETURN_IF_ERROR(
      memory_->run(cuda::RecordEventArgs{slot.copied.number(), cuda::Lane::kDownloads}));
  next_ = (next_ + 1) % slots_.size();
  under_way_.push_back({to, std::move(then), &slot, ++slot.copies});
  bytes_under_way_ += bytes;
  return {};
}

Status FetchStream::deliver() {
  const std::vector<UnderWay> arrived = std::exchange(under_way_, {});
  bytes_under_way_ = 0;
  // Until all callbacks have returned.
  if (!arrived.empty()) ++discarded_;
  // Other passes may have fetched, too, and theirs arrives whatever becomes of the caller's step.
  const Status left = memory_->leave_step();
  // What was fetched early arrived long ago: it is taken while the device computes the rest.
  std::size_t taken = 0;
  Status settled;
  while (settled.ok() && taken < arrived.size()) {
    const UnderWay& one = arrived[taken];
    if (one.slot->copies != one.copy) break;
    settled = memory_->run(cuda::WaitEventArgs{one.slot->copied.number()});
    if (!settled.ok()) break;
    one.then(one.at);
    ++taken;
  }
  if (settled.ok()) settled = memory_->synchronize();
  for (const auto& chunk : chunks_) chunk->used = 0;
  QUIRE_RETURN_IF_ERROR(settled);
  for (; taken < arrived.size(); ++taken) arrived[taken].then(arrived[taken].at);
  if (!arrived.empty()) --discarded_;
  return left;
}

}  // namespace quire
