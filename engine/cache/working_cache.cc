#include "engine/cache/working_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

std::int64_t pages_for(std::int64_t rows) { return (rows + kPageTokens - 1) / kPageTokens; }

bool ascends_strictly(std::span<const std::int32_t> positions) {
  return std::adjacent_find(positions.begin(), positions.end(), [](std::int32_t a, std::int32_t b) {
           return a >= b;
         }) == positions.end();
}

/// Strides holds the byte strides of a page.
struct Strides {
  std::int64_t row, token, kv, head;
  Strides(const PageFormat& f, PageLayout layout)
      : row(std::int64_t{f.head_dim} * static_cast<std::int64_t>(dtype_bytes(f.dtype))),
        token(layout == PageLayout::kTokenGranules ? 2 * row : row),
        kv(layout == PageLayout::kTokenGranules ? row
           : layout == PageLayout::kSplit       ? f.num_kv_heads * kPageTokens * row
                                                : kPageTokens * row),
        head((layout == PageLayout::kSplit ? 1 : 2) * kPageTokens * row) {}
};

KvView as_source(const MutableKvView& v) {
  return {.pages = v.pages,
          .positions = nullptr,
          .num_rows = v.num_rows,
          .num_kv_heads = v.num_kv_heads,
          .head_dim = v.head_dim,
          .dtype = v.dtype,
          .kv_stride = v.kv_stride,
          .head_stride = v.head_stride,
          .token_stride = v.token_stride,
          .sorted = false};
}

}  // namespace

WorkingCache::WorkingCache(PagePool& pool, std::int32_t num_layers)
    : pool_(&pool), layers_(to_size(num_layers)) {
  if (pool.memory() == nullptr) return;
  for (Layer& layer : layers_) layer.table = std::make_unique<KvTable>(*pool.memory());
}

Status WorkingCache::make_table_room(std::int32_t layer_idx) {
  const Layer& layer = layers_.at(at(layer_idx));
  return layer.table != nullptr ? layer.table->reserve(count_of(layer.positions)) : Status();
}

void WorkingCache::forget_tables() {
  for (Layer& layer : layers_) {
    if (layer.table != nullptr) layer.table->forget();
  }
}

WorkingCache::WorkingCache(WorkingCache&& other) noexcept
    : pool_(other.pool_),
      layers_(std::move(other.layers_)),
      most_bytes_(other.most_bytes_),
      moved_(std::move(other.moved_)) {
  other.layers_.clear();
  other.moved_.clear();
}

WorkingCache::~WorkingCache() { truncate_all(0); }

std::int64_t WorkingCache::num_rows(std::int32_t layer) const {
  return count_of(layers_.at(at(layer)).positions);
}

std::span<const std::int32_t> WorkingCache::positions(std::int32_t layer) const {
  return layers_.at(at(layer)).positions;
}

std::int64_t WorkingCache::bytes() const {
  std::int64_t pages = 0;
  for (const Layer& layer : layers_) pages += count_of(layer.pages);
  return pages * pool_->format().page_bytes();
}

Result<void*> WorkingCache::new_page(Layer& layer) const {
  if (!layer.on_host) return pool_->allocate();
  Result<void*> page = pool_->allocate_of(PageTier::kHost);
  if (page.ok()) return page;
  // A device reads pages wherever they lie.
  page = pool_->allocate_of(PageTier::kDevice);
  layer.strays = layer.strays || page.ok();
  return page;
}

Result<std::int64_t> WorkingCache::add_rows(std::int32_t layer_idx,
                                            std::span<const std::int32_t> positions) {
  Layer& layer = layers_.at(at(layer_idx));
  const auto first = count_of(layer.positions);
  if (positions.empty()) return first;
  // New rows join the last page if it has room.
  if (first % kPageTokens != 0)
    QUIRE_RETURN_IF_ERROR(own_page(layer, to_size(first / kPageTokens)));
  const auto old_pages = layer.pages.size();
  const auto new_pages = to_size(pages_for(first + count_of(positions)));
  layer.pages.reserve(new_pages);
  // Double the capacity, because decode adds one row at a time.
  if (const std::size_t need = layer.positions.size() + positions.size();
      need > layer.positions.capacity()) {
    layer.positions.reserve(std::max(need, 2 * layer.positions.capacity()));
  }
  while (layer.pages.size() < new_pages) {
    Result<void*> page = new_page(layer);
    if (!page.ok()) {
      for (; layer.pages.size() > old_pages; layer.pages.pop_back())
        pool_->release(layer.pages.back());
      return page.status();
    }
    layer.pages.push_back(*page);
  }
  most_bytes_ = std::max(most_bytes_, bytes());
  layer.sorted = layer.sorted && (first == 0 || layer.positions.back() < positions.front()) &&
                 ascends_strictly(positions);
  layer.positions.insert(layer.positions.end(), positions.begin(), positions.end());
  return first;
}

void WorkingCache::truncate(std::int32_t layer_idx, std::int64_t num_rows) {
  Layer& layer = layers_.at(at(layer_idx));
  if (num_rows < 0) num_rows = 0;
  if (num_rows >= count_of(layer.positions)) return;
  layer.positions.resize(to_size(num_rows));
  const auto keep = to_size(pages_for(num_rows));
  if (layer.table != nullptr) {
    layer.table->forget_rows(num_rows);
    layer.table->forget_pages(pages_for(num_rows));
  }
  for (; layer.pages.size() > keep; layer.pages.pop_back()) pool_->release(layer.pages.back());
  layer.shared = std::min(layer.shared, keep);
  if (!layer.sorted) layer.sorted = ascends_strictly(layer.positions);
  if (num_rows < layer.ragged_rows) {
    layer.ragged_rows = num_rows;
    for (std::int64_t& rows : layer.head_rows) rows = std::min(rows, num_rows);
  }
}

/// Gives the layer its own copy of the page if it has other holders. Call it before rows of the
/// page are written.
Status WorkingCache::own_page(Layer& layer, std::size_t page) {
  if (page >= layer.shared || !pool_->shared(layer.pages[page])) return {};
  QUIRE_ASSIGN_OR_RETURN(void* copy, new_page(layer));
  if (Status copied = pool_->copy_pages({&layer.pages[page], 1}, {&copy, 1}); !copied.ok()) {
    pool_->release(copy);
    return copied;
  }
  pool_->release(layer.pages[page]);
  layer.pages[page] = copy;
  if (layer.table != nullptr) layer.table->forget_pages(static_cast<std::int64_t>(page));
  return {};
}

void WorkingCache::append_shared(std::span<void* const> pages,
                                 std::span<const std::int32_t> positions) {
  QUIRE_CHECK(pages.size() == layers_.size() && !positions.empty() &&
                  positions.size() <= to_size(kPageTokens),
              "a shared page has one part per layer");
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    QUIRE_CHECK(layer.positions.size() % kPageTokens == 0,
                "shared pages are appended at page borders");
    layer.sorted = layer.sorted &&
                   (layer.positions.empty() || layer.positions.back() < positions.front()) &&
                   ascends_strictly(positions);
    layer.pages.push_back(pages[i]);
    layer.positions.insert(layer.positions.end(), positions.begin(), positions.end());
    layer.shared = layer.pages.size();
    pool_->share(pages[i]);
  }
  most_bytes_ = std::max(most_bytes_, bytes());
}

bool WorkingCache::shareable() const {
  return std::ranges::all_of(
      layers_, [](const Layer& layer) { return layer.layout == PageLayout::kHeadPages; });
}

std::vector<void*> WorkingCache::share_page(std::int64_t page) {
  QUIRE_CHECK(shareable(), "pages of a request's own layout are not shared");
  std::vector<void*> out;
  out.reserve(layers_.size());
  for (Layer& layer : layers_) {
    QUIRE_CHECK(page * kPageTokens < count_of(layer.positions), "a shared page holds rows");
    out.push_back(layer.pages[at(page)]);
    layer.shared = std::max(layer.shared, to_size(page) + 1);
    pool_->share(out.back());
  }
  return out;
}

Status WorkingCache::move_out() {
  std::vector<std::byte> moved;
  std::vector<void*> pages;
  try {
    for (const Layer& layer : layers_)
      pages.insert(pages.end(), layer.pages.begin(), layer.pages.end());
    moved.resize(to_size(bytes()));
  } catch (const std::bad_alloc&) {
    return Status::exhausted("the system gives no " + std::to_string(bytes()) +
                             " bytes of memory to move KV to");
  }
  QUIRE_RETURN_IF_ERROR(pool_->read_pages(pages, moved.data()));
  for (void* page : pages) pool_->release(page);
  for (Layer& layer : layers_) {
    layer.pages.clear();
    if (layer.table != nullptr) layer.table->forget_pages(0);
    layer.shared = 0;
  }
  moved_ = std::move(moved);
  return {};
}

Status WorkingCache::move_in() {
  if (moved_.empty()) return {};
  TakenPages taken(*pool_);
  for (Layer& layer : layers_) {
    const auto count = to_size(pages_for(count_of(layer.positions)));
    layer.pages.reserve(count);
    taken.pages.reserve(taken.pages.size() + count);
    for (std::size_t i = 0; i < count; ++i) {
      QUIRE_ASSIGN_OR_RETURN(void* const page, new_page(layer));
      taken.pages.push_back(page);
    }
  }
  QUIRE_RETURN_IF_ERROR(pool_->write_pages(moved_.data(), taken.pages));
  auto next = taken.pages.begin();
  for (Layer& layer : layers_) {
    const auto end = next + pages_for(count_of(layer.positions));
    layer.pages.assign(next, end);  // within what is reserved
    next = end;
  }
  taken.pages.clear();
  moved_ = {};
  return {};
}

void WorkingCache::truncate_all(std::int64_t num_rows) {
  for (std::int32_t layer = 0; layer < num_layers(); ++layer) truncate(layer, num_rows);
}

Status WorkingCache::check_host_pages() const {
  return pool_->memory() == nullptr
             ? Status()
             : Status::internal("rows are placed on a device by its Compute (KvOps::place)");
}

Status WorkingCache::place(std::int32_t layer_idx, const RopeTable& rope, const RawKvView& raw,
                           std::int64_t first_row) {
  Layer& layer = layers_.at(at(layer_idx));
  const auto rows = count_of(layer.positions);
  if (first_row < 0 || raw.num_rows < 0 || first_row > rows - raw.num_rows) {
    return Status::invalid("first_row", "rows " + std::to_string(first_row) + " to " +
                                            std::to_string(first_row + raw.num_rows) +
                                            " are not all among the cache's " +
                                            std::to_string(rows));
  }
  for (std::int64_t page = first_row / kPageTokens; page * kPageTokens < first_row + raw.num_rows;
       ++page) {
    QUIRE_RETURN_IF_ERROR(own_page(layer, to_size(page)));
  }
  QUIRE_RETURN_IF_ERROR(check_host_pages());
  return kv_place(rope, KvPlaceArgs{.src = raw,
                                    .dst = mutable_view(layer_idx),
                                    .positions = layer.positions.data() + first_row,
                                    .dst_rows = nullptr,
                                    .first_dst_row = first_row});
}

Status WorkingCache::place_rows(std::int32_t layer_idx, const RopeTable& rope, const RawKvView& raw,
                                std::span<const std::int32_t> rows) {
  Layer& layer = layers_.at(at(layer_idx));
  if (count_of(rows) != raw.num_rows) {
    return Status::invalid("rows", std::to_string(rows.size()) + " rows for " +
                                       std::to_string(raw.num_rows) + " raw rows");
  }
  QUIRE_RETURN_IF_ERROR(own_rows(layer, rows));
  std::vector<std::int32_t> positions(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) positions[i] = layer.positions[at(rows[i])];
  QUIRE_RETURN_IF_ERROR(check_host_pages());
  return kv_place(rope, KvPlaceArgs{.src = raw,
                                    .dst = mutable_view(layer_idx),
                                    .positions = positions.data(),
                                    .dst_rows = rows.data(),
                                    .first_dst_row = 0});
}

Status WorkingCache::own_rows(Layer& layer, std::span<const std::int32_t> rows) {
  for (const std::int32_t row : rows) {
    if (row < 0 || static_cast<std::size_t>(row) >= layer.positions.size()) {
      return Status::invalid("rows", "row " + std::to_string(row) + " is not among the cache's " +
                                         std::to_string(layer.positions.size()));
    }
    QUIRE_RETURN_IF_ERROR(own_page(layer, to_size(row / kPageTokens)));
  }
  return {};
}

Result<MutableKvView> WorkingCache::writable(std::int32_t layer,
                                             std::span<const std::int32_t> rows) {
  QUIRE_RETURN_IF_ERROR(own_rows(layers_.at(at(layer)), rows));
  return mutable_view(layer);
}

/// Moves kept rows to their places in ordinary memory.
Status WorkingCache::copy_kept(Layer& layer, std::span<const std::vector<std::int32_t>> rows) {
  const Strides strides(pool_->format(), layer.layout);
  for (std::size_t head = 0; head < rows.size(); ++head) {
    const auto at = [&](std::size_t row, std::int64_t kv) {
      return static_cast<std::byte*>(layer.pages[row / kPageTokens]) +
             static_cast<std::int64_t>(head) * strides.head + kv * strides.kv +
             static_cast<std::int64_t>(row % kPageTokens) * strides.token;
    };
    for (std::size_t i = 0; i < rows[head].size(); ++i) {
      const auto from = to_size(rows[head][i]);  // never before i: lists ascend
      if (from == i) continue;
      for (const std::int64_t kv : {0, 1})
        std::memcpy(at(i, kv), at(from, kv), to_size(strides.row));
    }
  }
  return {};
}

/// Does the same on the device, some rows at a time by way of other pages: a row may come from
/// where another one goes. Rows of later turns lie behind all that earlier ones wrote.
Status WorkingCache::gather_kept(std::int32_t layer_idx,
                                 std::span<const std::vector<std::int32_t>> rows,
                                 std::size_t most) {
  constexpr std::int64_t kTurn = 4096;
  const std::int64_t bytes = pool_->format().page_bytes(),
                     room_pages = pages_for(std::min(kTurn, static_cast<std::int64_t>(most)));
  ComputeMemory& memory = *pool_->memory();
  QUIRE_ASSIGN_OR_RETURN(void* const given,
                         memory.allocate(room_pages * bytes, MemoryPlace::kPages));
  const auto release = [&memory](void* p) { memory.release(p, MemoryPlace::kPages); };
  const std::unique_ptr<void, decltype(release)> room(given, release);
  std::vector<void*> pages;
  for (std::int64_t page = 0; page < room_pages; ++page)
    pages.push_back(static_cast<std::byte*>(room.get()) + page * bytes);
  const MutableKvView there = mutable_view(pages, room_pages * kPageTokens, PageLayout::kHeadPages),
                      own = mutable_view(layer_idx);
  std::vector<KvMove> out, back;
  for (std::int64_t first = 0; first < static_cast<std::int64_t>(most);
       first += room_pages * kPageTokens) {
    out.clear();
    back.clear();
    for (std::size_t head = 0; head < rows.size(); ++head) {
      const std::vector<std::int32_t>& list = rows[head];
      const std::int64_t end = std::min(first + room_pages * kPageTokens, count_of(list));
      for (std::int64_t i = first; i < end;) {
        std::int64_t n = 1;  // neighbours move together
        while (i + n < end && n < kPageTokens && list[at(i + n)] == list[at(i)] + n) ++n;
        const auto h = static_cast<std::int32_t>(head), from = list[at(i)],
                   to = static_cast<std::int32_t>(i), aside = static_cast<std::int32_t>(i - first),
                   count = static_cast<std::int32_t>(n);
        if (from != to) {
          out.push_back({h, from, aside, count});
          back.push_back({h, aside, to, count});
        }
        i += n;
      }
    }
    QUIRE_RETURN_IF_ERROR(memory.gather({as_source(own), there, out.data(), count_of(out),
                                         static_cast<std::int32_t>(kPageTokens)}));
    QUIRE_RETURN_IF_ERROR(memory.gather({as_source(there), own, back.data(), count_of(back),
                                         static_cast<std::int32_t>(kPageTokens)}));
  }
  return {};
}

Status WorkingCache::keep_rows(std::int32_t layer_idx,
                               std::span<const std::vector<std::int32_t>> rows) {
  Layer& layer = layers_.at(at(layer_idx));
  const PageFormat& format = pool_->format();
  const auto held = static_cast<std::int32_t>(layer.positions.size());
  if (rows.size() != static_cast<std::size_t>(format.num_kv_heads) || !layer.head_rows.empty()) {
    return Status::invalid("rows", "one list per KV head is needed, of rows that every head holds");
  }
  std::size_t most = 0;
  for (const auto& list : rows) {
    if (list.empty() || list.front() < 0 || list.back() >= held || !ascends_strictly(list)) {
      return Status::invalid("rows", "a list must ascend within the cache's " +
                                         std::to_string(held) + " rows and hold at least one");
    }
    most = std::max(most, list.size());
  }
  for (std::size_t page = 0; page * kPageTokens < most; ++page)
    QUIRE_RETURN_IF_ERROR(own_page(layer, page));
  QUIRE_RETURN_IF_ERROR(pool_->memory() != nullptr ? gather_kept(layer_idx, rows, most)
                                                   : copy_kept(layer, rows));
  std::vector<std::int32_t> positions(most, std::numeric_limits<std::int32_t>::min());
  for (const auto& list : rows) {
    for (std::size_t i = 0; i < list.size(); ++i)
      positions[i] = std::max(positions[i], layer.positions[to_size(list[i])]);
  }
  truncate(layer_idx, static_cast<std::int64_t>(most));
  layer.positions = std::move(positions);
  if (layer.table != nullptr) layer.table->forget();
  layer.sorted = ascends_strictly(layer.positions);
  if (std::all_of(rows.begin(), rows.end(),
                  [most](const auto& list) { return list.size() == most; }))
    return {};
  for (const auto& list : rows) layer.head_rows.push_back(count_of(list));
  layer.ragged_rows = static_cast<std::int64_t>(most);
  return {};
}

bool WorkingCache::ragged(std::int32_t layer) const {
  return !layers_.at(at(layer)).head_rows.empty();
}

void WorkingCache::head_rows(std::int32_t layer_idx, std::int32_t kv_head,
                             std::vector<std::int32_t>& out) const {
  const Layer& layer = layers_.at(at(layer_idx));
  const std::int64_t own = layer.head_rows.empty() ? 0 : layer.head_rows.at(at(kv_head));
  out.clear();
  for (std::int64_t row = 0; row < own; ++row) out.push_back(static_cast<std::int32_t>(row));
  for (std::int64_t row = layer.ragged_rows; row < num_rows(layer_idx); ++row)
    out.push_back(static_cast<std::int32_t>(row));
}

KvView WorkingCache::view(std::int32_t layer_idx) const {
  const Layer& layer = layers_.at(at(layer_idx));
  const PageFormat& format = pool_->format();
  const Strides strides(format, layer.layout);
  return KvView{.pages = layer.pages.data(),
                .positions = layer.positions.data(),
                .num_rows = count_of(layer.positions),
                .num_kv_heads = format.num_kv_heads,
                .head_dim = format.head_dim,
                .dtype = format.dtype,
                .kv_stride = strides.kv,
                .head_stride = strides.head,
                .token_stride = strides.token,
                .sorted = layer.sorted,
                .table = layer.table.get()};
}

MutableKvView WorkingCache::mutable_view(std::int32_t layer_idx) {
  const Layer& layer = layers_.at(at(layer_idx));
  return mutable_view(layer.pages, count_of(layer.positions), layer.layout);
}

MutableKvView WorkingCache::mutable_view(std::span<void* const> pages, std::int64_t rows,
                                         PageLayout layout) const {
  const PageFormat& format = pool_->format();
  const Strides strides(format, layout);
  return MutableKvView{.pages = pages.data(),
                       .num_rows = rows,
                       .num_kv_heads = format.num_kv_heads,
                       .head_dim = format.head_dim,
                       .dtype = format.dtype,
                       .kv_stride = strides.kv,
                       .head_stride = strides.head,
                       .token_stride = strides.token};
}

Status WorkingCache::leave_device(std::int32_t layer_idx, PageLayout layout, const CopyRows& copy) {
  Layer& layer = layers_.at(at(layer_idx));
  if (!pool_->has_host_tier() || layer.on_host) return {};
  TakenPages taken(*pool_);
  std::vector<void*>& pages = taken.pages;
  pages.reserve(layer.pages.size());
  while (pages.size() < layer.pages.size()) {
    QUIRE_ASSIGN_OR_RETURN(void* const page, pool_->allocate_of(PageTier::kHost));
    pages.push_back(page);
  }
  if (const Status copied = copy(view(layer_idx),
                                 mutable_view(pages, count_of(layer.positions), layout));
      !copied.ok()) {
    (void)pool_->synchronize();  // what was enqueued before the error
    return copied;
  }
  std::swap(layer.pages, pages);
  if (layer.table != nullptr) layer.table->forget_pages(0);
  layer.shared = 0;
  layer.on_host = true;
  layer.strays = false;
  layer.layout = layout;
  return {};
}

Result<KvView> WorkingCache::host_view(std::int32_t layer_idx, HostRows& room) const {
  const KvView kv = view(layer_idx);
  const Layer& layer = layers_.at(at(layer_idx));
  if (pool_->memory() == nullptr) return kv;
  if (layer.on_host) return layer.strays ? without_strays(layer, kv, room) : kv;
  const std::int64_t bytes = pool_->format().page_bytes(), pages = pages_for(kv.num_rows);
  // The page of the last row that was copied may have got more rows since.
  const std::int64_t first = room.rows_ > kv.num_rows ? 0 : room.rows_ / kPageTokens;
  room.bytes_.resize(to_size(pages * bytes));
  QUIRE_RETURN_IF_ERROR(
      pool_->read_pages(std::span<void* const>(layer.pages).subspan(to_size(first)),
                        room.bytes_.data() + first * bytes));
  room.rows_ = kv.num_rows;
  room.pages_.clear();
  for (std::int64_t page = 0; page < pages; ++page)
    room.pages_.push_back(room.bytes_.data() + page * bytes);
  KvView out = kv;
  out.pages = room.pages_.data();
  out.table = nullptr;
  return out;
}

/// Returns a view of the host's pages and of copies of those that lie on the device, which are made
/// each time, because the cache may move between two calls.
Result<KvView> WorkingCache::without_strays(const Layer& layer, const KvView& kv,
                                            HostRows& room) const {
  std::vector<void*> strays;
  std::vector<std::size_t> places;
  room.clear();
  room.pages_.assign(layer.pages.begin(), layer.pages.end());
  for (std::size_t page = 0; page < layer.pages.size(); ++page) {
    if (pool_->tier(layer.pages[page]) == PageTier::kHost) continue;
    strays.push_back(layer.pages[page]);
    places.push_back(page);
  }
  const auto bytes = to_size(pool_->format().page_bytes());
  room.bytes_.resize(strays.size() * bytes);
  QUIRE_RETURN_IF_ERROR(pool_->read_pages(strays, room.bytes_.data()));
  for (std::size_t i = 0; i < places.size(); ++i)
    room.pages_[places[i]] = room.bytes_.data() + i * bytes;
  KvView out = kv;
  out.pages = room.pages_.data();
  out.table = nullptr;
  return out;
}

std::int64_t WorkingCache::find_row(std::int32_t layer_idx, std::int32_t position) const {
  const Layer& layer = layers_.at(at(layer_idx));
  const auto& p = layer.positions;
  const auto it = layer.sorted ? std::lower_bound(p.begin(), p.end(), position)
                               : std::find(p.begin(), p.end(), position);
  return it == p.end() || *it != position ? -1 : it - p.begin();
}

}  // namespace quire
