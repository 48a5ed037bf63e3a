#include "engine/record/selection_keys.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/index.h"

namespace quire {
namespace {

constexpr unsigned char kMagic[8] = {'Q', 'S', 'H', '1', 1, 0, 0, 0};
constexpr std::size_t kHeaderBytes = 32, kPairBytes = 8;

std::size_t pair_bytes(const SelectionKeysShape& shape) {
  return to_size(shape.num_tokens) * (sizeof(float) + to_size(shape.head_dim));
}
std::size_t scales_at(const SelectionKeysShape& shape, std::size_t pair) {
  return kHeaderBytes + shape.pairs.size() * kPairBytes + pair * pair_bytes(shape);
}
std::size_t keys_at(const SelectionKeysShape& shape, std::size_t pair) {
  return scales_at(shape, pair) + to_size(shape.num_tokens) * sizeof(float);
}

}  // namespace

std::vector<std::byte> begin_selection_keys(const SelectionKeysShape& shape) {
  std::vector<std::byte> record(scales_at(shape, shape.pairs.size()));
  const auto put = [&record](std::size_t offset, auto value) {
    std::memcpy(record.data() + offset, &value, sizeof value);
  };
  std::memcpy(record.data(), kMagic, sizeof kMagic);
  put(8, static_cast<std::uint32_t>(shape.pairs.size()));
  put(12, static_cast<std::uint32_t>(shape.head_dim));
  put(16, static_cast<std::uint64_t>(shape.num_tokens));
  std::size_t offset = kHeaderBytes;
  for (const SelectionHeads::Pair& p : shape.pairs) {
    put(offset, static_cast<std::uint32_t>(p.layer));
    put(offset + 4, static_cast<std::uint32_t>(p.kv_head));
    offset += kPairBytes;
  }
  return record;
}

void put_selection_key(std::span<std::byte> record, const SelectionKeysShape& shape,
                       std::size_t pair, std::int64_t token, const float* key) {
  const auto finite = [](float x) { return std::isfinite(x) ? x : 0.0f; };
  float largest = 0;
  for (std::int32_t c = 0; c < shape.head_dim; ++c)
    largest = std::max(largest, std::abs(finite(key[c])));
  const float scale = largest / 127;
  std::memcpy(record.data() + scales_at(shape, pair) + to_size(token) * sizeof scale, &scale,
              sizeof scale);
  std::byte* const out = record.data() + keys_at(shape, pair) +
                         to_size(token) * to_size(shape.head_dim);
  for (std::int32_t c = 0; c < shape.head_dim; ++c) {
    const float code = scale > 0 ? std::round(finite(key[c]) / scale) : 0.0f;
    out[c] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(code, -127.0f, 127.0f)));
  }
}

Result<SelectionKeysView> SelectionKeysView::parse(std::span<const std::byte> record) {
  if (record.size() < kHeaderBytes) return Status::corruption("shorter than its header");
  if (std::memcmp(record.data(), kMagic, sizeof kMagic) != 0)
    return Status::corruption("not a record of this kind and version");
  const auto number = [&record](std::size_t offset) {
    std::uint32_t value = 0;
    std::memcpy(&value, record.data() + offset, sizeof value);
    return value;
  };
  const std::uint32_t pairs = number(8), dim = number(12);
  std::uint64_t tokens = 0;
  std::memcpy(&tokens, record.data() + 16, sizeof tokens);
  if (pairs == 0 || dim == 0 || tokens == 0 || pairs > 4096 || dim > 4096)
    return Status::corruption("its header holds impossible numbers");
  const std::uint64_t fixed = kHeaderBytes + std::uint64_t{pairs} * kPairBytes,
                      per_token = std::uint64_t{pairs} * (sizeof(float) + dim);
  if (record.size() < fixed || (record.size() - fixed) % per_token != 0 ||
      (record.size() - fixed) / per_token != tokens)
    return Status::corruption("its length does not fit its header");
  SelectionKeysView view;
  view.record_ = record;
  view.shape_.head_dim = static_cast<std::int32_t>(dim);
  view.shape_.num_tokens = static_cast<std::int64_t>(tokens);
  for (std::uint32_t p = 0; p < pairs; ++p) {
    const std::uint32_t layer = number(kHeaderBytes + p * kPairBytes),
                        kv_head = number(kHeaderBytes + p * kPairBytes + 4);
    if (layer > 4096 || kv_head > 4096) return Status::corruption("it names an impossible head");
    view.shape_.pairs.push_back(
        {static_cast<std::int32_t>(layer), static_cast<std::int32_t>(kv_head)});
  }
  if (std::ranges::adjacent_find(view.shape_.pairs, std::greater_equal<>()) !=
      view.shape_.pairs.end())
    return Status::corruption("its heads are not in order");
  return view;
}

void SelectionKeysView::keys(std::size_t pair, std::int64_t first, std::int64_t rows,
                             std::span<float> out) const {
  const std::byte* const scales = record_.data() + scales_at(shape_, pair);
  const std::byte* const codes = record_.data() + keys_at(shape_, pair);
  const std::int64_t dim = shape_.head_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    float scale = 0;
    std::memcpy(&scale, scales + to_size(first + r) * sizeof scale, sizeof scale);
    if (!std::isfinite(scale)) scale = 0;
    const std::byte* const key = codes + (first + r) * dim;
    float* const to = out.data() + r * dim;
    for (std::int64_t c = 0; c < dim; ++c)
      to[c] = scale * static_cast<float>(static_cast<std::int8_t>(key[c]));
  }
}

}  // namespace quire
