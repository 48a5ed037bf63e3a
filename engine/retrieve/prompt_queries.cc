#include "engine/retrieve/prompt_queries.h"

#include <algorithm>
#include <limits>
#include <random>
#include <utility>

#include "base/dtype.h"
#include "base/index.h"
#include "engine/compute/compute.h"

namespace quire {
namespace {

/// Returns `count` of the positions below n, ascending.
std::vector<std::int32_t> wanted_positions(const WantedQueries& wanted, std::int64_t n) {
  std::vector<std::int32_t> out;
  const std::int64_t count = std::min(wanted.count, n);
  switch (wanted.rows) {
    case WantedQueries::Rows::kLast:
      break;
    case WantedQueries::Rows::kFirst:
      for (std::int64_t p = 0; p < count; ++p) out.push_back(static_cast<std::int32_t>(p));
      break;
    case WantedQueries::Rows::kSpread:
      for (std::int64_t i = 0; i < count; ++i)
        out.push_back(static_cast<std::int32_t>((i + 1) * n / count - 1));
      break;
    case WantedQueries::Rows::kRandom: {
      // Each position is sampled with the probability that is left for it: the same rows on every
      // machine.
      std::mt19937_64 random(static_cast<std::uint64_t>(n));
      for (std::int64_t p = 0; p < n && count_of(out) < count; ++p) {
        if (static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n - p)) <
            count - count_of(out))
          out.push_back(static_cast<std::int32_t>(p));
      }
    }
  }
  return out;
}

}  // namespace

PromptQueries::PromptQueries(const RopeTable& rope, Shape shape, WantedQueries wanted,
                             std::int64_t prompt_tokens)
    : rope_(rope),
      shape_(shape),
      wanted_(wanted),
      positions_(wanted_positions(wanted, prompt_tokens)),
      layers_(at(shape.num_layers)),
      rotated_(at(shape.num_heads) * at(shape.head_dim)) {}

bool PromptQueries::wanted(std::int32_t position) const {
  return wanted_.rows == WantedQueries::Rows::kLast ||
         std::binary_search(positions_.begin(), positions_.end(), position);
}

/// Returns the slot for the row's query; -1: all kept rows have larger positions.
std::int32_t PromptQueries::slot_for(Layer& layer, std::int32_t position) const {
  auto& rows = layer.rows;
  auto place = std::lower_bound(rows.begin(), rows.end(), position,
                                [](const Row& r, std::int32_t p) { return r.position < p; });
  if (place != rows.end() && place->position == position) return place->slot;
  if (count_of(rows) < wanted_.count) {
    const auto slot = static_cast<std::int32_t>(rows.size());
    rows.insert(place, {position, slot});
    layer.queries.resize(rows.size() * rotated_.size());
    layer.lse.resize(rows.size() * at(shape_.num_heads));
    return slot;
  }
  if (place == rows.begin()) return -1;
  const std::int32_t slot = rows.front().slot;
  std::move(rows.begin() + 1, place, rows.begin());
  *(place - 1) = {position, slot};
  return slot;
}

/// Rotates a raw query to its position and keeps it; null lse: unknown.
Status PromptQueries::keep(Layer& layer, std::int32_t slot, std::int32_t position, const float* raw,
                           const float* lse) {
  RopeRotateArgs rotate{};
  rotate.x = raw;
  rotate.out = rotated_.data();
  rotate.positions = &position;
  rotate.rows = 1;
  rotate.num_heads = shape_.num_heads;
  rotate.ldx = rotate.ldo = count_of(rotated_);
  QUIRE_RETURN_IF_ERROR(rope_rotate(rope_, rotate));
  std::transform(rotated_.begin(), rotated_.end(),
                 layer.queries.begin() + slot * static_cast<std::ptrdiff_t>(rotated_.size()),
                 f32_to_bf16);
  const auto out = layer.lse.begin() + std::ptrdiff_t{slot} * shape_.num_heads;
  if (lse != nullptr)
    std::copy_n(lse, shape_.num_heads, out);
  else
    std::fill_n(out, shape_.num_heads, std::numeric_limits<float>::quiet_NaN());
  return {};
}

Status PromptQueries::after_attention(LayerPass& pass) {
  QUIRE_RETURN_IF_ERROR(failed_);
  const auto n = count_of(pass.positions);
  // Positions ascend within a pass, so at most its last `count` rows can stay.
  const std::int64_t first = wanted_.rows == WantedQueries::Rows::kLast
                                 ? std::max<std::int64_t>(0, n - wanted_.count)
                                 : 0;
  std::vector<std::int32_t> rows;
  for (std::int64_t i = first; i < n; ++i) {
    if (wanted(pass.positions[at(i)])) rows.push_back(static_cast<std::int32_t>(i));
  }
  if (rows.empty()) return {};
  return fetch_rows(pass, rows);
}

Status PromptQueries::take_row(std::int32_t layer_index, std::int32_t position, const float* raw,
                               const float* lse) {
  Layer& layer = layers_[at(layer_index)];
  const std::int32_t slot = slot_for(layer, position);
  return slot < 0 ? Status() : keep(layer, slot, position, raw, lse);
}

Status PromptQueries::fetch_rows(const LayerPass& pass, std::span<const std::int32_t> rows) {
  FetchOps& fetch = pass.compute->fetch();
  LinearOps& linear = pass.compute->linear();
  const auto n = count_of(rows), width = count_of(rotated_), heads = std::int64_t{shape_.num_heads};
  const std::int64_t bytes = n * (width + heads) * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const to, fetch.place(bytes));
  auto* const queries = reinterpret_cast<float*>(to);
  QUIRE_RETURN_IF_ERROR(linear.take_rows(pass.qkv.q, pass.qkv.ld, rows, width, queries));
  QUIRE_RETURN_IF_ERROR(linear.take_rows(pass.lse, heads, rows, heads, queries + n * width));
  std::vector<std::int32_t> positions;
  for (const std::int32_t i : rows) positions.push_back(pass.positions[at(i)]);
  return fetch.fetch(bytes, [this, layer = pass.layer, positions = std::move(positions), n, width,
                             heads](const std::byte* fetched) {
    const auto* raw = reinterpret_cast<const float*>(fetched);
    for (std::int64_t i = 0; i < n && failed_.ok(); ++i)
      failed_ = take_row(layer, positions[at(i)], raw + i * width, raw + n * width + i * heads);
  });
}

Status PromptQueries::add_stored(std::int32_t layer_index, std::int32_t position,
                                 std::span<const float> raw) {
  QUIRE_CHECK(raw.size() == rotated_.size(), "one query of the model");
  Layer& layer = layers_[at(layer_index)];
  const bool there = std::binary_search(
      layer.rows.begin(), layer.rows.end(), Row{position, 0},
      [](const Row& a, const Row& b) { return a.position < b.position; });
  if (there || !has_room(layer_index) || !wanted(position)) return {};
  return keep(layer, slot_for(layer, position), position, raw.data(), nullptr);
}

std::span<const std::uint16_t> PromptQueries::query(std::int32_t layer, std::int64_t i) const {
  return std::span(layers_[at(layer)].queries)
      .subspan(at(row(layer, i).slot) * rotated_.size(), rotated_.size());
}

std::span<const float> PromptQueries::lse(std::int32_t layer, std::int64_t i) const {
  return std::span(layers_[at(layer)].lse)
      .subspan(at(row(layer, i).slot) * at(shape_.num_heads), at(shape_.num_heads));
}

}  // namespace quire
