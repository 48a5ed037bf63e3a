#include "engine/residency/resident_pages.h"

#include <algorithm>
#include <utility>

#include "base/index.h"

namespace quire {

std::int64_t ResidentPages::bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                      std::int32_t page_tokens, std::int32_t num_slots) {
  return std::int64_t{2} * num_kv_heads * num_slots * page_tokens * head_dim *
         static_cast<std::int64_t>(dtype_bytes(dtype));
}

Result<ResidentPages> ResidentPages::create(DevicePool& pool, std::int32_t num_kv_heads,
                                            std::int32_t head_dim, DType dtype,
                                            std::int32_t page_tokens, std::int32_t num_slots) {
  ResidentPages r;
  r.head_dim_ = head_dim;
  r.dtype_ = dtype;
  r.page_tokens_ = page_tokens;
  r.num_slots_ = num_slots;
  const std::int64_t part_bytes = std::int64_t{2} * kPageTokens * head_dim *
                                  static_cast<std::int64_t>(dtype_bytes(dtype));
  const std::int64_t parts = std::int64_t{num_slots} * page_tokens / kPageTokens;
  QUIRE_ASSIGN_OR_RETURN(
      r.memory_, pool.allocate(bytes_for(num_kv_heads, head_dim, dtype, page_tokens, num_slots)));
  for (std::int64_t p = 0; p < parts; ++p) r.parts_.push_back(r.memory_.data() + p * part_bytes);
  r.no_positions_.assign(to_size(num_slots) * to_size(page_tokens), 0);
  r.heads_.resize(to_size(num_kv_heads));
  for (std::int32_t m = 0; m < num_kv_heads; ++m) {
    Head& head = r.heads_[at(m)];
    head.page_of.assign(to_size(num_slots), -1);
    head.positions.assign(to_size(num_slots) * to_size(page_tokens), kNowhere);
    for (std::int64_t p = 0; p < parts; ++p)
      head.pages.push_back(r.memory_.data() + (m * parts + p) * part_bytes);
  }
  return r;
}

std::int32_t ResidentPages::slot_of(std::int32_t head, std::int32_t page) const {
  const auto& slots = heads_[at(head)].slot_of;
  return static_cast<std::size_t>(page) < slots.size() ? slots[at(page)] : -1;
}

void ResidentPages::set_positions(Head& head, std::int32_t slot, const RowRange& rows,
                                  std::span<const std::int32_t> positions) const {
  const auto begin = head.positions.begin() + std::int64_t{slot} * page_tokens_;
  std::fill(std::copy(positions.begin() + rows.begin, positions.begin() + rows.end, begin),
            begin + page_tokens_, kNowhere);
}

std::vector<std::pair<std::int32_t, std::int64_t>> ResidentPages::in_use(const Head& head) const {
  std::vector<std::pair<std::int32_t, std::int64_t>> used;  // page, slot
  for (std::int64_t slot = 0; slot < num_slots_; ++slot) {
    if (const std::int32_t page = head.page_of[at(slot)]; page >= 0) used.emplace_back(page, slot);
  }
  std::sort(used.begin(), used.end());
  return used;
}

void ResidentPages::order(const Head& head) const {
  if (head.ordered) return;
  head.ordered = true;
  const std::int64_t parts = page_tokens_ / kPageTokens;
  const auto used = in_use(head);
  head.ordered_pages.clear();
  head.ordered_positions.clear();
  for (const auto& [page, slot] : used) {
    head.ordered_pages.insert(head.ordered_pages.end(), head.pages.begin() + slot * parts,
                              head.pages.begin() + (slot + 1) * parts);
    head.ordered_positions.insert(head.ordered_positions.end(),
                                  head.positions.begin() + slot * page_tokens_,
                                  head.positions.begin() + (slot + 1) * page_tokens_);
  }
}

void ResidentPages::want(std::int32_t head_index, std::span<const std::int32_t> wanted,
                         const RetrievalPages& pages, std::span<const std::int32_t> positions,
                         std::vector<PageCopy>& copies) {
  Head& head = heads_[at(head_index)];
  head.slot_of.resize(to_size(pages.size()), -1);
  std::vector<bool> keep(to_size(num_slots_), false);
  for (const std::int32_t page : wanted) {
    if (const std::int32_t slot = head.slot_of[at(page)]; slot >= 0) keep[at(slot)] = true;
  }
  std::int32_t next = 0;
  for (const std::int32_t page : wanted) {
    if (head.slot_of[at(page)] >= 0) continue;
    while (keep[at(next)]) ++next;
    std::int32_t& holds = head.page_of[at(next)];
    if (holds >= 0) head.slot_of[at(holds)] = -1;
    holds = page;
    head.slot_of[at(page)] = next;
    keep[at(next)] = true;
    set_positions(head, next, pages[page], positions);
    copies.push_back({head_index, page, next});
  }
  // Unwanted pages must not be visible.
  for (std::int32_t slot = 0; slot < num_slots_; ++slot) {
    std::int32_t& holds = head.page_of[at(slot)];
    if (keep[at(slot)] || holds < 0) continue;
    head.slot_of[at(holds)] = -1;
    holds = -1;
    set_positions(head, slot, {0, 0}, positions);
  }
  head.ordered = false;
}

KvMove ResidentPages::move(const PageCopy& what, const RowRange& rows) const {
  return {what.head, static_cast<std::int32_t>(rows.begin), what.slot * page_tokens_,
          static_cast<std::int32_t>(rows.end - rows.begin)};
}

std::int64_t ResidentPages::copy_bytes(const RowRange& rows) const {
  return (rows.end - rows.begin) * 2 * head_dim_ * static_cast<std::int64_t>(dtype_bytes(dtype_));
}

void ResidentPages::append(const RetrievalPages& pages, std::int32_t page, std::int32_t position,
                           std::vector<KvMove>& moves) {
  const RowRange& rows = pages[page];
  const auto row = static_cast<std::int32_t>(rows.end - 1),
             offset = static_cast<std::int32_t>(row - rows.begin);
  for (std::int32_t m = 0; m < static_cast<std::int32_t>(heads_.size()); ++m) {
    const std::int32_t slot = slot_of(m, page);
    if (slot < 0) continue;
    const std::int32_t to = slot * page_tokens_ + offset;
    moves.push_back({m, row, to, 1});
    heads_[at(m)].positions[at(to)] = position;
    heads_[at(m)].ordered = false;
  }
}

std::int32_t ResidentPages::rows_in(std::int32_t head, std::int32_t slot) const {
  const auto begin = heads_[at(head)].positions.begin() + std::int64_t{slot} * page_tokens_;
  return static_cast<std::int32_t>(std::find(begin, begin + page_tokens_, kNowhere) - begin);
}

MutableKvView ResidentPages::slots() const {
  const auto row_bytes = static_cast<std::int64_t>(head_dim_) *
                         static_cast<std::int64_t>(dtype_bytes(dtype_));
  const auto parts = count_of(parts_);
  return MutableKvView{.pages = parts_.data(),
                       .num_rows = parts * kPageTokens,
                       .num_kv_heads = static_cast<std::int32_t>(heads_.size()),
                       .head_dim = head_dim_,
                       .dtype = dtype_,
                       .kv_stride = kPageTokens * row_bytes,
                       .head_stride = parts * 2 * kPageTokens * row_bytes,
                       .token_stride = row_bytes};
}

KvView ResidentPages::listed() const {
  const MutableKvView all = slots();
  return KvView{.pages = all.pages,
                .positions = no_positions_.data(),
                .num_rows = all.num_rows,
                .num_kv_heads = all.num_kv_heads,
                .head_dim = head_dim_,
                .dtype = dtype_,
                .kv_stride = all.kv_stride,
                .head_stride = all.head_stride,
                .token_stride = all.token_stride,
                .sorted = false};
}

void ResidentPages::append_rows(std::int32_t head_index, std::vector<std::int32_t>& rows) const {
  const Head& head = heads_[at(head_index)];
  for (const auto& [page, slot] : in_use(head)) {
    const std::int64_t first = slot * page_tokens_;
    for (std::int64_t row = first;
         row < first + page_tokens_ && head.positions[at(row)] != kNowhere; ++row)
      rows.push_back(static_cast<std::int32_t>(row));
  }
}

KvView ResidentPages::view(std::int32_t head_index) const {
  const Head& head = heads_[at(head_index)];
  order(head);
  const auto row_bytes = static_cast<std::int64_t>(head_dim_) *
                         static_cast<std::int64_t>(dtype_bytes(dtype_));
  return KvView{.pages = head.ordered_pages.data(),
                .positions = head.ordered_positions.data(),
                .num_rows = count_of(head.ordered_positions),
                .num_kv_heads = 1,
                .head_dim = head_dim_,
                .dtype = dtype_,
                .kv_stride = kPageTokens * row_bytes,
                .head_stride = 0,
                .token_stride = row_bytes,
                .sorted = false};
}

}  // namespace quire
