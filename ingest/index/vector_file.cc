#include "ingest/index/vector_file.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "cachestore/format/value_hash.h"

namespace quire {
namespace {

constexpr std::size_t kHashBytes = 8;

/// Hashes a slot's values together with its number, so that those of another slot do not pass.
record::Hash128 hash_of(const std::byte* values, std::size_t bytes, std::uint32_t slot) {
  return record::value_hash128(values, bytes, slot);
}

/// Returns the f32 of every f16: a search converts millions of them.
const std::vector<float>& f32_of_f16() {
  static const std::vector<float> table = [] {
    std::vector<float> out;
    for (std::uint32_t v = 0; v <= UINT16_MAX; ++v)
      out.push_back(f16_to_f32(static_cast<std::uint16_t>(v)));
    return out;
  }();
  return table;
}

}  // namespace

Result<VectorFile> VectorFile::create(const std::string& folder, std::int64_t dimension) {
  QUIRE_ASSIGN_OR_RETURN(ScratchFile file, ScratchFile::create(folder));
  return VectorFile(std::move(file), dimension);
}

std::int64_t VectorFile::slot_bytes() const {
  return dimension_ * static_cast<std::int64_t>(sizeof(std::uint16_t)) +
         static_cast<std::int64_t>(kHashBytes);
}

Result<std::uint32_t> VectorFile::put(std::span<const float> vector) {
  const std::uint32_t slot = free_.empty() ? num_slots_ : free_.back();
  std::vector<std::byte> bytes(to_size(slot_bytes()));
  const std::size_t value_bytes = bytes.size() - kHashBytes;
  for (std::size_t i = 0; i < vector.size(); ++i) {
    const std::uint16_t value = f32_to_f16(vector[i]);
    std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
  }
  const auto hash = hash_of(bytes.data(), value_bytes, slot);
  std::memcpy(bytes.data() + value_bytes, hash.data(), kHashBytes);
  QUIRE_RETURN_IF_ERROR(file_.write(slot * bytes.size(), bytes.data(), bytes.size()));
  if (free_.empty())
    ++num_slots_;
  else
    free_.pop_back();
  return slot;
}

void VectorFile::free(std::span<const std::uint32_t> slots) {
  free_.insert(free_.end(), slots.begin(), slots.end());
  std::sort(free_.begin(), free_.end(), std::greater<>());
}

Status VectorFile::trim() {
  std::size_t last = 0;
  while (last < free_.size() && free_[last] + last + 1 == num_slots_) ++last;
  if (last == 0) return {};
  const auto slots = num_slots_ - static_cast<std::uint32_t>(last);
  QUIRE_RETURN_IF_ERROR(file_.resize(to_size(slots * slot_bytes())));
  free_.erase(free_.begin(), free_.begin() + static_cast<std::ptrdiff_t>(last));
  num_slots_ = slots;
  return {};
}

Status VectorFile::read(std::uint32_t first, std::uint32_t count, float* vectors) const {
  const std::size_t slot = to_size(slot_bytes()), value_bytes = slot - kHashBytes;
  std::vector<std::byte> bytes(count * slot);
  QUIRE_RETURN_IF_ERROR(file_.read(first * slot, bytes.data(), bytes.size()));
  const std::vector<float>& f32_of = f32_of_f16();
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::byte* at = bytes.data() + i * slot;
    const auto hash = hash_of(at, value_bytes, first + i);
    if (std::memcmp(at + value_bytes, hash.data(), kHashBytes) != 0)
      return Status::corruption("a vector of the index for retrieval was damaged on disk");
    for (std::size_t v = 0; v < value_bytes; v += sizeof(std::uint16_t)) {
      std::uint16_t value = 0;
      std::memcpy(&value, at + v, sizeof value);
      *vectors++ = f32_of[value];
    }
  }
  return {};
}

void VectorFile::prefetch(std::uint32_t first, std::uint32_t count) const {
  const std::size_t slot = to_size(slot_bytes());
  file_.prefetch(first * slot, count * slot);
}

}  // namespace quire
