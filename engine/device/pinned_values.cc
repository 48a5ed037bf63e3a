#include "engine/device/pinned_values.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "base/index.h"
#include "base/log.h"

namespace quire {
namespace {

constexpr std::size_t in_pages(std::size_t bytes) {
  return (bytes + PinnedValues::kPage - 1) / PinnedValues::kPage * PinnedValues::kPage;
}

std::size_t whole_pages(std::int64_t bytes) {
  return to_size(std::max<std::int64_t>(bytes, 0)) / PinnedValues::kPage * PinnedValues::kPage;
}

}  // namespace

PinnedValues::PinnedValues(std::shared_ptr<cuda::DeviceOps> ops, std::int64_t most_bytes,
                           std::int64_t slab_bytes)
    : ops_(std::move(ops)),
      most_bytes_(whole_pages(most_bytes)),
      slab_bytes_(whole_pages(slab_bytes)) {}

PinnedValues::~PinnedValues() {
  QUIRE_CHECK(runs_.empty(), "values outlive their pinned memory");
  Status released = ops_->synchronize();
  for (const Slab& slab : slabs_)
    if (const Status s = ops_->release(cuda::MemoryKind::kPinned, slab.memory); !s.ok())
      released = s;
  if (!released.ok() && released.code() != Code::kDeviceLost)
    log_warning("pinned memory of the DRAM tier could not be given back",
                {{"reason", released.to_string()}});
}

std::size_t PinnedValues::next_slab() const {
  return failed_ ? 0 : std::min(slab_bytes_, most_bytes_ - pinned_bytes_);
}

Status PinnedValues::pin_slab(std::size_t least_bytes) {
  std::size_t bytes = 0;
  {
    const std::lock_guard lock(mu_);
    bytes = next_slab();
  }
  if (bytes < least_bytes) return Status::exhausted("no more pinned memory is allowed");
  const auto memory = ops_->allocate(cuda::MemoryKind::kPinned, static_cast<std::int64_t>(bytes));
  const std::lock_guard lock(mu_);
  if (!memory.ok()) {
    failed_ = true;
    log_warning(
        "the DRAM tier goes on in ordinary memory, as no more can be pinned",
        {{"pinned_bytes", std::to_string(pinned_bytes_)}, {"reason", memory.status().to_string()}});
    return memory.status();
  }
  slabs_.push_back({static_cast<std::byte*>(*memory), bytes, {{0, bytes}}, bytes});
  pinned_bytes_ += bytes;
  return {};
}

Status PinnedValues::pin_first() {
  const std::lock_guard growing(grow_mu_);
  {
    const std::lock_guard lock(mu_);
    if (!slabs_.empty()) return {};
  }
  return pin_slab(kPage);
}

/// Returns the first run of so many bytes; null: no slab has one.
std::byte* PinnedValues::find(std::size_t bytes) {
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    Slab& slab = slabs_[i];
    if (bytes > slab.longest) continue;
    const auto fits = std::ranges::find_if(
        slab.free, [&](const auto& range) { return range.second >= bytes; });
    if (fits == slab.free.end()) {
      slab.longest = bytes - kPage;
      continue;
    }
    const auto [offset, size] = *fits;
    slab.free.erase(fits);
    if (size > bytes) slab.free.emplace(offset + bytes, size - bytes);
    std::byte* const memory = slab.memory + offset;
    runs_.emplace(memory, Run{i, bytes});
    return memory;
  }
  return nullptr;
}

void PinnedValues::free(Runs::iterator run) {
  Slab& slab = slabs_[run->second.slab];
  auto offset = static_cast<std::size_t>(run->first - slab.memory);
  std::size_t bytes = run->second.bytes;
  runs_.erase(run);
  auto next = slab.free.lower_bound(offset);
  if (next != slab.free.end() && next->first == offset + bytes) {
    bytes += next->second;
    next = slab.free.erase(next);
  }
  if (next != slab.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      slab.free.erase(before);
    }
  }
  slab.free.emplace(offset, bytes);
  slab.longest = std::max(slab.longest, bytes);
}

std::byte* PinnedValues::take(std::size_t bytes) noexcept try {
  const std::size_t size = in_pages(bytes);
  {
    const std::lock_guard lock(mu_);
    if (std::byte* const memory = find(size)) return memory;
    if (next_slab() < size) return nullptr;
  }
  const std::lock_guard growing(grow_mu_);
  {
    // Another thread may have pinned a slab, or seen that it cannot.
    const std::lock_guard lock(mu_);
    if (std::byte* const memory = find(size)) return memory;
  }
  if (!pin_slab(size).ok()) return nullptr;
  const std::lock_guard lock(mu_);
  return find(size);
} catch (const std::bad_alloc&) {
  return nullptr;
}

void PinnedValues::give(std::byte* memory) noexcept {
  const std::lock_guard lock(mu_);
  const auto run = runs_.find(memory);
  QUIRE_CHECK(run != runs_.end() && run->second.given, "a value is freed twice");
  run->second.given = false;
  if (run->second.holds == 0) free(run);
}

std::vector<std::uint8_t> PinnedValues::hold(const std::shared_ptr<PinnedValues>& values,
                                             const std::vector<Range>& ranges, Hold& hold) {
  std::vector<std::uint8_t> inside(ranges.size());
  hold.from_ = values;
  hold.runs_.reserve(hold.runs_.size() + ranges.size());
  const std::lock_guard lock(values->mu_);
  Runs& runs = values->runs_;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto* const first = static_cast<const std::byte*>(ranges[i].first);
    auto run = runs.upper_bound(first);
    if (run == runs.begin()) continue;
    --run;
    // Compared as distances: the range may begin in other memory behind the last run.
    const auto before = static_cast<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(first) -
                                                    reinterpret_cast<std::uintptr_t>(run->first));
    if (before + to_size(ranges[i].bytes) > run->second.bytes) continue;
    inside[i] = 1;
    if (!hold.runs_.empty() && hold.runs_.back() == run->first) continue;
    ++run->second.holds;
    hold.runs_.push_back(run->first);
  }
  return inside;
}

void PinnedValues::Hold::end() {
  if (!runs_.empty()) from_->end_hold(runs_);
  runs_.clear();
  from_.reset();
}

void PinnedValues::end_hold(const std::vector<const std::byte*>& runs) {
  const std::lock_guard lock(mu_);
  for (const std::byte* const first : runs) {
    const auto run = runs_.find(first);
    if (--run->second.holds == 0 && !run->second.given) free(run);
  }
}

PinnedValues::Use PinnedValues::use() const {
  const std::lock_guard lock(mu_);
  Use use{.pinned_bytes = static_cast<std::int64_t>(pinned_bytes_), .failed = failed_};
  for (const auto& [first, run] : runs_) {
    use.given_bytes += static_cast<std::int64_t>(run.bytes);
    if (run.holds > 0) use.held_bytes += static_cast<std::int64_t>(run.bytes);
  }
  return use;
}

}  // namespace quire
