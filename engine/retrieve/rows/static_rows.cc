#include "engine/retrieve/rows/static_rows.h"

#include <algorithm>
#include <limits>

#include "base/index.h"

namespace quire {
namespace {

/// A position that no query reaches, of places without a row.
constexpr std::int32_t kNowhere = std::numeric_limits<std::int32_t>::max();

std::int64_t pages_for(std::int64_t rows) { return (rows + kPageTokens - 1) / kPageTokens; }

/// Local rows begin and end anywhere within a page.
std::int64_t local_pages(std::int64_t rows) { return pages_for(rows) + 1; }

std::int64_t head_bytes(const KvView& kv) {
  return std::int64_t{kPageTokens} * kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype));
}

}  // namespace

std::int64_t StaticRows::bytes_for(const KvView& kv, std::int64_t sink, std::int64_t local) {
  return (pages_for(sink) + local_pages(local)) * 2 * kv.num_kv_heads * head_bytes(kv);
}

Result<StaticRows> StaticRows::create(DevicePool& pool, const KvView& kv, std::int64_t sink,
                                      std::int64_t local) {
  StaticRows rows;
  QUIRE_ASSIGN_OR_RETURN(rows.memory_, pool.allocate(bytes_for(kv, sink, local)));
  rows.sink_ = sink;
  rows.sink_pages_ = pages_for(sink);
  rows.shape_ = kv;
  rows.shape_.pages = nullptr;
  rows.shape_.positions = nullptr;
  rows.shape_.table = nullptr;
  rows.shape_.num_rows = 0;
  rows.shape_.kv_stride = head_bytes(kv);
  rows.shape_.head_stride = 2 * rows.shape_.kv_stride;
  rows.shape_.token_stride = rows.shape_.kv_stride / kPageTokens;
  const std::int64_t ring = local_pages(local);
  for (std::int64_t p = 0; p < rows.sink_pages_ + ring; ++p)
    rows.pages_.push_back(rows.memory_.data() + p * kv.num_kv_heads * rows.shape_.head_stride);
  rows.sink_positions_.assign(to_size(rows.sink_pages_ * kPageTokens), kNowhere);
  rows.local_positions_.assign(to_size(ring * kPageTokens), kNowhere);
  return rows;
}

MutableKvView StaticRows::slots() const {
  return {.pages = pages_.data(),
          .num_rows = count_of(pages_) * kPageTokens,
          .num_kv_heads = shape_.num_kv_heads,
          .head_dim = shape_.head_dim,
          .dtype = shape_.dtype,
          .kv_stride = shape_.kv_stride,
          .head_stride = shape_.head_stride,
          .token_stride = shape_.token_stride};
}

/// Returns the page that a local row of the layer has here.
std::int64_t StaticRows::page_of(std::int64_t row) const {
  return sink_pages_ + row / kPageTokens % (count_of(pages_) - sink_pages_);
}

std::int64_t StaticRows::first_local(std::int64_t first) const {
  const std::int64_t ring = count_of(pages_) - sink_pages_, last = (num_rows_ - 1) / kPageTokens;
  return std::max(first, (last - ring + 1) * kPageTokens);
}

Status StaticRows::follow(KvOps& kv_ops, const KvView& kv, std::int64_t first) {
  std::vector<KvMove> moves;
  std::int32_t most = 0;
  const auto copy = [&](std::int64_t from, std::int64_t to, std::int64_t rows) {
    most = std::max(most, static_cast<std::int32_t>(rows));
    for (std::int32_t head = 0; head < kv.num_kv_heads; ++head)
      moves.push_back({head, static_cast<std::int32_t>(from), static_cast<std::int32_t>(to),
                       static_cast<std::int32_t>(rows)});
  };
  if (num_rows_ == 0 && sink_ > 0) {
    copy(0, 0, sink_);
    std::copy_n(kv.positions, sink_, sink_positions_.begin());
  }
  // A row that a failed step has written is written again.
  std::int64_t row = num_rows_ == 0 ? 0 : std::min(num_rows_, kv.num_rows - 1);
  num_rows_ = kv.num_rows;
  row = std::max(row, first_local(first));
  while (row < kv.num_rows) {
    const std::int64_t end = std::min(kv.num_rows, (row / kPageTokens + 1) * kPageTokens),
                       place = page_of(row) * kPageTokens + row % kPageTokens;
    copy(row, place, end - row);
    std::copy(kv.positions + row, kv.positions + end,
              local_positions_.begin() + (place - sink_pages_ * kPageTokens));
    row = end;
  }
  return kv_ops.gather({kv, slots(), moves.data(), count_of(moves), most});
}

KvView StaticRows::view(std::int64_t first) {
  const std::int64_t begin = first_local(first);
  view_pages_.assign(pages_.begin(), pages_.begin() + sink_pages_);
  view_positions_.assign(sink_positions_.begin(), sink_positions_.end());
  for (std::int64_t row = begin; row < num_rows_; row += kPageTokens) {
    const std::int64_t page = page_of(row);
    view_pages_.push_back(pages_[at(page)]);
    const auto from = local_positions_.begin() + (page - sink_pages_) * kPageTokens;
    view_positions_.insert(view_positions_.end(), from,
                           from + std::min<std::int64_t>(kPageTokens, num_rows_ - row));
  }
  KvView view = shape_;
  view.pages = view_pages_.data();
  view.positions = view_positions_.data();
  view.num_rows = count_of(view_positions_);
  view.sorted = false;
  return view;
}

}  // namespace quire
