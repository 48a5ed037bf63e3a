#include "engine/record/tail_record.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::uint32_t kMagic = 0x31515451;  // "QTQ1"
constexpr std::int64_t kHeaderBytes = 32;
constexpr std::uint32_t kMostLayers = 4096, kMostHeads = 1024, kMostHeadDim = 256;

template <class T>
T read(std::span<const std::byte> bytes, std::int64_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

template <class T>
void write(std::span<std::byte> out, std::int64_t at, T x) {
  std::memcpy(out.data() + at, &x, sizeof x);
}

std::int64_t row_bytes(const TailRecordShape& s) {
  return std::int64_t{s.num_heads} * (s.head_dim + 4);
}
/// Returns the offset of a layer: its scales, followed by its integers.
std::int64_t layer_at(const TailRecordShape& s, std::int32_t layer) {
  return kHeaderBytes + layer * s.num_rows * row_bytes(s);
}
std::int64_t scale_at(const TailRecordShape& s, std::int32_t layer, std::int64_t row,
                      std::int32_t head) {
  return layer_at(s, layer) + 4 * (row * s.num_heads + head);
}
std::int64_t values_at(const TailRecordShape& s, std::int32_t layer, std::int64_t row,
                       std::int32_t head) {
  return layer_at(s, layer) + 4 * s.num_rows * s.num_heads +
         (row * s.num_heads + head) * s.head_dim;
}

Status damaged(const std::string& what) {
  return Status::corruption("a record of tail queries " + what);
}

}  // namespace

std::int64_t tail_rows(const TailRecordShape& shape, std::int64_t kv_bytes) {
  const double room = kTailShare * static_cast<double>(kv_bytes) -
                      static_cast<double>(kHeaderBytes);
  const auto fit = static_cast<std::int64_t>(
      std::max(0.0, room) / static_cast<double>(shape.num_layers * row_bytes(shape)));
  return std::min({fit, kMostTailRows, shape.num_tokens});
}

std::vector<std::byte> begin_tail_record(const TailRecordShape& shape) {
  QUIRE_CHECK(shape.num_rows > 0 && shape.num_rows <= std::min(kMostTailRows, shape.num_tokens),
              "a record of the last tokens, kMostTailRows at most");
  std::vector<std::byte> out(
      to_size(kHeaderBytes + shape.num_layers * shape.num_rows * row_bytes(shape)));
  write(std::span(out), 0, kMagic);
  write(std::span(out), 4, kTailRecordVersion);
  write(std::span(out), 8, static_cast<std::uint32_t>(shape.num_layers));
  write(std::span(out), 12, static_cast<std::uint32_t>(shape.num_heads));
  write(std::span(out), 16, static_cast<std::uint32_t>(shape.head_dim));
  write(std::span(out), 20, static_cast<std::uint32_t>(shape.num_rows));
  write(std::span(out), 24, static_cast<std::uint64_t>(shape.num_tokens));
  return out;
}

void put_tail_query(std::span<std::byte> record, const TailRecordShape& shape, std::int32_t layer,
                    std::int64_t row, const float* query) {
  QUIRE_CHECK(layer >= 0 && layer < shape.num_layers && row >= 0 && row < shape.num_rows,
              "a row of the record");
  const auto finite = [](float x) { return std::isfinite(x) ? x : 0.0f; };
  for (std::int32_t head = 0; head < shape.num_heads; ++head, query += shape.head_dim) {
    float largest = 0;
    for (std::int32_t c = 0; c < shape.head_dim; ++c)
      largest = std::max(largest, std::abs(finite(query[c])));
    const float scale = largest / 127.0f;
    write(record, scale_at(shape, layer, row, head), scale);
    const std::int64_t first = values_at(shape, layer, row, head);
    for (std::int32_t c = 0; c < shape.head_dim; ++c)
      write(
          record, first + c,
          static_cast<std::int8_t>(
              scale > 0 ? std::lround(std::clamp(finite(query[c]) / scale, -127.0f, 127.0f)) : 0));
  }
}

Result<TailRecordView> TailRecordView::parse(std::span<const std::byte> record) {
  if (record.size() < static_cast<std::size_t>(kHeaderBytes))
    return damaged("has " + std::to_string(record.size()) + " bytes, fewer than its header");
  if (read<std::uint32_t>(record, 0) != kMagic)
    return damaged("does not begin with its magic number");
  if (const auto version = read<std::uint16_t>(record, 4); version != kTailRecordVersion)
    return damaged("has version " + std::to_string(version) + ", not " +
                   std::to_string(kTailRecordVersion));
  const auto layers = read<std::uint32_t>(record, 8), heads = read<std::uint32_t>(record, 12),
             dim = read<std::uint32_t>(record, 16), rows = read<std::uint32_t>(record, 20);
  const auto tokens = read<std::uint64_t>(record, 24);
  if (layers == 0 || layers > kMostLayers || heads == 0 || heads > kMostHeads || dim == 0 ||
      dim > kMostHeadDim) {
    return damaged("is of " + std::to_string(layers) + " layers with " + std::to_string(heads) +
                   " heads of " + std::to_string(dim));
  }
  if (rows == 0 || rows > kMostTailRows || rows > tokens || tokens > (std::uint64_t{1} << 40))
    return damaged("holds " + std::to_string(rows) + " of " + std::to_string(tokens) + " tokens");
  TailRecordView view;
  view.shape_ = {static_cast<std::int32_t>(layers), static_cast<std::int32_t>(heads),
                 static_cast<std::int32_t>(dim), static_cast<std::int64_t>(rows),
                 static_cast<std::int64_t>(tokens)};
  const std::int64_t bytes = layer_at(view.shape_, view.shape_.num_layers);
  if (record.size() != static_cast<std::size_t>(bytes))
    return damaged("has " + std::to_string(record.size()) + " bytes, its header says " +
                   std::to_string(bytes));
  view.record_ = record;
  return view;
}

void TailRecordView::query(std::int32_t layer, std::int64_t row, std::span<float> out) const {
  QUIRE_CHECK(layer >= 0 && layer < shape_.num_layers && row >= 0 && row < shape_.num_rows,
              "a row of the record");
  QUIRE_CHECK(out.size() == static_cast<std::size_t>(shape_.num_heads) * to_size(shape_.head_dim),
              "room for one query");
  for (std::int32_t head = 0; head < shape_.num_heads; ++head) {
    const auto scale = read<float>(record_, scale_at(shape_, layer, row, head));
    const std::int64_t first = values_at(shape_, layer, row, head);
    for (std::int32_t c = 0; c < shape_.head_dim; ++c) {
      const float x = scale * static_cast<float>(read<std::int8_t>(record_, first + c));
      out[at(head * shape_.head_dim + c)] = std::isfinite(x) ? x : 0.0f;
    }
  }
}

}  // namespace quire
