#include "engine/residency/token_slots.h"

#include <algorithm>

#include "base/index.h"

namespace quire {
namespace {

std::int64_t num_pages(std::int32_t num_slots) {
  return (num_slots + kPageTokens - 1) / kPageTokens;
}

}  // namespace

void SlotMap::want(std::span<const std::int32_t> rows, std::vector<SlotLoad>& loads) {
  QUIRE_CHECK(rows.size() <= row_of_.size(), "more rows are wanted than there are slots");
  if (!rows.empty() && static_cast<std::size_t>(rows.back()) >= slot_of_.size())
    slot_of_.resize(to_size(rows.back()) + 1, -1);
  slots_.assign(rows.size(), -1);
  std::vector<bool> keep(row_of_.size(), false);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    slots_[i] = slot_of_[at(rows[i])];
    if (slots_[i] >= 0) keep[at(slots_[i])] = true;
  }
  for (std::size_t slot = 0; slot < row_of_.size(); ++slot) {
    if (keep[slot] || row_of_[slot] < 0) continue;
    slot_of_[at(row_of_[slot])] = -1;
    row_of_[slot] = -1;
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (slots_[i] >= 0) continue;
    while (keep[next]) ++next;
    const auto slot = static_cast<std::int32_t>(next++);
    row_of_[at(slot)] = rows[i];
    slot_of_[at(rows[i])] = slots_[i] = slot;
    loads.push_back({rows[i], slot});
  }
}

std::int64_t TokenSlots::bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                   std::int32_t num_slots) {
  return num_pages(num_slots) * kPageTokens * 2 * num_kv_heads * head_dim *
         static_cast<std::int64_t>(dtype_bytes(dtype));
}

Result<TokenSlots> TokenSlots::create(DevicePool& pool, std::int32_t num_kv_heads,
                                      std::int32_t head_dim, DType dtype, std::int32_t num_slots) {
  TokenSlots out;
  out.num_kv_heads_ = num_kv_heads;
  out.head_dim_ = head_dim;
  out.dtype_ = dtype;
  out.half_row_bytes_ = head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
  QUIRE_ASSIGN_OR_RETURN(out.memory_,
                         pool.allocate(bytes_for(num_kv_heads, head_dim, dtype, num_slots)));
  const std::int64_t page_bytes = 2 * num_kv_heads * kPageTokens * out.half_row_bytes_;
  for (std::int64_t p = 0; p < num_pages(num_slots); ++p)
    out.pages_.push_back(out.memory_.data() + p * page_bytes);
  out.positions_.assign(to_size(num_pages(num_slots) * kPageTokens), 0);
  return out;
}

KvView TokenSlots::view() const {
  return KvView{.pages = pages_.data(),
                .positions = positions_.data(),
                .num_rows = count_of(positions_),
                .num_kv_heads = num_kv_heads_,
                .head_dim = head_dim_,
                .dtype = dtype_,
                .kv_stride = num_kv_heads_ * kPageTokens * half_row_bytes_,
                .head_stride = kPageTokens * half_row_bytes_,
                .token_stride = half_row_bytes_,
                .sorted = false};
}

MutableKvView TokenSlots::slots() const {
  const KvView all = view();
  return MutableKvView{.pages = pages_.data(),
                       .num_rows = all.num_rows,
                       .num_kv_heads = num_kv_heads_,
                       .head_dim = head_dim_,
                       .dtype = dtype_,
                       .kv_stride = all.kv_stride,
                       .head_stride = all.head_stride,
                       .token_stride = all.token_stride};
}

}  // namespace quire
