#include "engine/record/head_record.h"

#include <cmath>
#include <cstring>
#include <string>

#include "base/dtype.h"
#include "base/index.h"

namespace quire {
namespace {

constexpr std::uint32_t kMagic = 0x314b4851;  // "QHK1"
constexpr std::size_t kHeaderBytes = 56;
constexpr std::uint32_t kMostHeads = 1024, kMostHeadDim = 256;

template <class T>
T read(std::span<const std::byte> bytes, std::size_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

template <class T>
void write(std::vector<std::byte>& out, std::size_t at, T x) {
  std::memcpy(out.data() + at, &x, sizeof x);
}

Status damaged(const std::string& what) {
  return Status::corruption("a record of head keys " + what);
}

}  // namespace

Result<HeadRecordView> HeadRecordView::parse(std::span<const std::byte> record) {
  if (record.size() < kHeaderBytes)
    return damaged("has " + std::to_string(record.size()) + " bytes, fewer than its header");
  if (read<std::uint32_t>(record, 0) != kMagic)
    return damaged("does not begin with its magic number");
  if (const auto version = read<std::uint16_t>(record, 4); version != kHeadRecordVersion)
    return damaged("has version " + std::to_string(version) + ", not " +
                   std::to_string(kHeadRecordVersion));
  const auto heads = read<std::uint32_t>(record, 8), dim = read<std::uint32_t>(record, 12);
  const auto tokens = read<std::uint64_t>(record, 16);
  if (heads == 0 || heads > kMostHeads || dim == 0 || dim > kMostHeadDim)
    return damaged("is of " + std::to_string(heads) + " heads of " + std::to_string(dim));
  const std::uint64_t row = std::uint64_t{2} * heads * dim, left = record.size() - kHeaderBytes;
  if (left % row != 0 || left / row != tokens)
    return damaged("holds " + std::to_string(left) + " bytes for " + std::to_string(tokens) +
                   " tokens of " + std::to_string(row));
  HeadRecordView view;
  view.shape_.num_kv_heads = static_cast<std::int32_t>(heads);
  view.shape_.head_dim = static_cast<std::int32_t>(dim);
  view.shape_.num_tokens = static_cast<std::int64_t>(tokens);
  std::memcpy(view.shape_.head_digest.data(), record.data() + 24, view.shape_.head_digest.size());
  view.values_ = record.subspan(kHeaderBytes);
  return view;
}

void HeadRecordView::keys(std::int64_t first, std::int64_t count, std::vector<float>& out) const {
  QUIRE_CHECK(first >= 0 && count >= 0 && first + count <= shape_.num_tokens,
              "keys of tokens that the record has");
  if (count == 0) return;
  const std::int64_t row = std::int64_t{shape_.num_kv_heads} * shape_.head_dim;
  std::vector<std::uint16_t> stored(to_size(count * row));
  std::memcpy(stored.data(), values_.data() + 2 * first * row, stored.size() * 2);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const float x = load_f32(stored.data(), DType::kF16, static_cast<std::int64_t>(i));
    out.push_back(std::isfinite(x) ? x : 0.0f);
  }
}

std::vector<std::byte> build_head_record(const HeadRecordShape& shape,
                                         std::span<const float> keys) {
  QUIRE_CHECK(keys.size() == static_cast<std::size_t>(shape.num_tokens) *
                                 to_size(shape.num_kv_heads) * to_size(shape.head_dim),
              "a key for every token");
  std::vector<std::byte> out(kHeaderBytes + 2 * keys.size());
  write(out, 0, kMagic);
  write(out, 4, kHeadRecordVersion);
  write(out, 8, static_cast<std::uint32_t>(shape.num_kv_heads));
  write(out, 12, static_cast<std::uint32_t>(shape.head_dim));
  write(out, 16, static_cast<std::uint64_t>(shape.num_tokens));
  std::memcpy(out.data() + 24, shape.head_digest.data(), shape.head_digest.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    store_f32(out.data() + kHeaderBytes, DType::kF16, static_cast<std::int64_t>(i), keys[i]);
  return out;
}

}  // namespace quire
