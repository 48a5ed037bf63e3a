#include "engine/device/team/team_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace quire {
namespace {

constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));

std::int32_t page_of(std::int64_t row) { return static_cast<std::int32_t>(row / kPageTokens); }

/// Returns the moves of heads [begin, end), counted from `begin`.
std::vector<KvMove> moves_of(const KvGatherArgs& a, std::int32_t begin, std::int32_t end) {
  std::vector<KvMove> out;
  for (const KvMove& move : std::span(a.moves, to_size(a.num_moves))) {
    if (move.head < begin || move.head >= end) continue;
    out.push_back(move);
    out.back().head -= begin;
  }
  return out;
}

/// Returns moves of all rows of `pages` pages and `heads` heads to the same rows.
std::vector<KvMove> whole_pages(std::int64_t pages, std::int32_t heads) {
  std::vector<KvMove> out;
  for (std::int64_t page = 0; page < pages; ++page) {
    const auto first = static_cast<std::int32_t>(page * kPageTokens);
    for (std::int32_t head = 0; head < heads; ++head)
      out.push_back({head, first, first, kPageTokens});
  }
  return out;
}

/// TouchedPages numbers the pages that moves touch on one side, and renames the rows to them.
class TouchedPages {
 public:
  std::int32_t rename(std::int32_t row, std::int32_t rows) {
    const std::int32_t first = page_of(row), last = page_of(row + rows - 1);
    // Neighbouring pages stay neighbours, so a move over two pages takes both anew.
    const auto [at, fresh] = numbers_.try_emplace(std::pair(first, last),
                                                  static_cast<std::int32_t>(pages.size()));
    for (std::int32_t page = first; fresh && page <= last; ++page) pages.push_back(page);
    return at->second * kPageTokens + row % kPageTokens;
  }
  std::vector<std::int32_t> pages;

 private:
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> numbers_;
};

}  // namespace

TeamPages::TeamPages(std::shared_ptr<TeamMemory> team)
    : team_(std::move(team)), whole_(team_->rank(0), cuda::MemoryKind::kDevice) {
  for (std::int64_t r = 0; r < team_->ranks(); ++r)
    aside_.push_back(std::make_unique<Aside>(team_->rank(r)));
}

Status TeamPages::set_shape(std::int32_t num_kv_heads, std::int64_t head_bytes) {
  const std::lock_guard lock(mu_);
  if (head_bytes_ != 0 && (heads_.heads != num_kv_heads || head_bytes_ != head_bytes))
    return Status::invalid("head_bytes", "pages over several devices have one shape");
  if (num_kv_heads < 1 || head_bytes < 64 || head_bytes % 64 != 0)
    return Status::invalid("head_bytes", "the part of a head has a multiple of 64 bytes");
  heads_ = HeadCut::of(num_kv_heads, team_->ranks());
  head_bytes_ = head_bytes;
  return {};
}

void TeamPages::drop(Slab& slab) const {
  for (std::int64_t r = 0; r < count_of(slab.parts); ++r)
    if (slab.parts[at(r)] != nullptr)
      team_->rank(r)->release(slab.parts[at(r)], MemoryPlace::kPages);
}

Result<void*> TeamPages::allocate(std::int64_t bytes, MemoryPlace place) {
  return place == MemoryPlace::kPages ? allocate_pages(bytes)
                                      : team_->rank(0)->allocate(bytes, place);
}

Result<void*> TeamPages::allocate_pages(std::int64_t bytes) {
  const std::int64_t page_bytes = heads_.heads * head_bytes_;
  if (page_bytes == 0 || bytes % page_bytes != 0)
    return Status::invalid("bytes", "memory for pages has whole pages");
  Slab slab{bytes, {}};
  for (std::int64_t r = 0; r < team_->ranks(); ++r) {
    slab.parts.push_back(nullptr);
    if (heads_.size(r) == 0) continue;
    auto part = team_->rank(r)->allocate(bytes / heads_.heads * heads_.size(r),
                                         MemoryPlace::kPages);
    if (!part.ok()) {
      drop(slab);
      return part.status();
    }
    slab.parts.back() = *part;
  }
  // Addresses alone: no memory is behind them.
  void* const base = mmap(nullptr, to_size(bytes), PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    drop(slab);
    return Status::exhausted("the system has no " + std::to_string(bytes) +
                             " addresses for pages over several devices");
  }
  const std::lock_guard lock(mu_);
  slabs_.emplace(static_cast<const std::byte*>(base), std::move(slab));
  return base;
}

void TeamPages::release(void* p, MemoryPlace place) {
  if (place != MemoryPlace::kPages) return team_->rank(0)->release(p, place);
  Slab slab;
  {
    const std::lock_guard lock(mu_);
    const auto at = slabs_.find(static_cast<const std::byte*>(p));
    if (at == slabs_.end()) return;
    slab = std::move(at->second);
    slabs_.erase(at);
  }
  drop(slab);
  munmap(p, to_size(slab.bytes));
}

bool TeamPages::holds(const void* page) const {
  const auto* at = static_cast<const std::byte*>(page);
  const std::lock_guard lock(mu_);
  const auto next = slabs_.upper_bound(at);
  if (next == slabs_.begin()) return false;
  const auto& [base, slab] = *std::prev(next);
  return at < base + slab.bytes;
}

void* TeamPages::on_rank(std::int64_t rank, const void* page) const {
  const auto* at_page = static_cast<const std::byte*>(page);
  const std::lock_guard lock(mu_);
  const auto& [base, slab] = *std::prev(slabs_.upper_bound(at_page));
  return static_cast<std::byte*>(slab.parts[at(rank)]) +
         (at_page - base) / heads_.heads * heads_.size(rank);
}

KvView TeamPages::part(std::int64_t rank, const KvView& kv, std::vector<const void*>& pages) const {
  KvView out = kv;
  out.num_kv_heads = heads_.size(rank);
  std::int64_t first = 0;
  if (kv.table != nullptr) {
    if (rank > 0) out.table = &kv.table->other(at(rank - 1), *team_->rank(rank));
    first = out.table->known_pages();
  }
  const std::int64_t count = (kv.num_rows + kPageTokens - 1) / kPageTokens;
  // A table that must move forgets what it knew.
  if (out.table != nullptr && !out.table->has_room(kv.num_rows)) first = 0;
  pages.resize(to_size(count));
  for (std::int64_t page = first; page < count; ++page)
    pages[at(page)] = on_rank(rank, kv.pages[page]);
  out.pages = pages.data();
  return out;
}

MutableKvView TeamPages::part(std::int64_t rank, const MutableKvView& kv,
                              std::span<const std::int32_t> rows, std::vector<void*>& pages) const {
  const auto [least, most] = std::ranges::minmax(rows);
  pages.resize(at(page_of(most) + 1));
  for (std::int32_t page = page_of(least); page <= page_of(most); ++page)
    pages[at(page)] = on_rank(rank, kv.pages[page]);
  MutableKvView out = kv;
  out.num_kv_heads = heads_.size(rank);
  out.pages = pages.data();
  return out;
}

Status TeamPages::check_layout(std::int64_t head_stride, std::int32_t num_kv_heads) const {
  if (head_stride == head_bytes_ && num_kv_heads == heads_.heads) return {};
  return Status::internal("pages over several devices must have their heads outermost");
}

Status TeamPages::gather(const KvGatherArgs& a) {
  if (a.num_moves == 0) return {};
  const bool from = holds(a.src.pages[page_of(a.moves[0].from)]),
             to = holds(a.dst.pages[page_of(a.moves[0].to)]);
  if (!from && !to) return team_->rank(0)->gather(a);
  if (from) QUIRE_RETURN_IF_ERROR(check_layout(a.src.head_stride, a.src.num_kv_heads));
  if (to) QUIRE_RETURN_IF_ERROR(check_layout(a.dst.head_stride, a.dst.num_kv_heads));
  return from && to ? gather_within(a) : from ? gather_out(a) : gather_in(a);
}

Status TeamPages::gather_within(const KvGatherArgs& a) const {
  std::vector<const void*> from(to_size((a.src.num_rows + kPageTokens - 1) / kPageTokens));
  std::vector<void*> to(to_size((a.dst.num_rows + kPageTokens - 1) / kPageTokens));
  for (std::int64_t r = 0; r < team_->ranks(); ++r) {
    if (heads_.size(r) == 0) continue;
    const std::vector<KvMove> moves = moves_of(a, heads_.begin(r), heads_.end(r));
    for (const KvMove& move : moves) {
      for (auto page = page_of(move.from); page <= page_of(move.from + move.rows - 1); ++page)
        from[at(page)] = on_rank(r, a.src.pages[page]);
      for (auto page = page_of(move.to); page <= page_of(move.to + move.rows - 1); ++page)
        to[at(page)] = on_rank(r, a.dst.pages[page]);
    }
    KvGatherArgs part = a;
    part.src.num_kv_heads = part.dst.num_kv_heads = heads_.size(r);
    part.src.pages = from.data();
    part.dst.pages = to.data();
    part.moves = moves.data();
    part.num_moves = count_of(moves);
    QUIRE_RETURN_IF_ERROR(team_->rank(r)->gather(part));
  }
  return {};
}

Status TeamPages::join(std::span<const void* const> pages, const KvView& shape) {
  const std::int64_t count = count_of(pages), page_bytes = heads_.heads * head_bytes_,
                     first = heads_.each * head_bytes_;
  QUIRE_RETURN_IF_ERROR(whole_.reserve(count * page_bytes));
  QUIRE_RETURN_IF_ERROR(
      aside_[0]->pages.reserve(std::max<std::int64_t>(1, count * (page_bytes - first))));
  std::vector<cuda::Communicator::Part> parts(to_size(team_->ranks()));
  for (std::int64_t r = 0; r < team_->ranks(); ++r) {
    if (heads_.size(r) == 0) continue;
    const std::int64_t bytes = heads_.size(r) * head_bytes_;
    std::byte* there = whole_.data();
    if (r > 0) {
      QUIRE_RETURN_IF_ERROR(aside_[at(r)]->pages.reserve(count * bytes));
      there = aside_[at(r)]->pages.data();
      parts[at(r)] = {there,
                      aside_[0]->pages.data() + count * (heads_.begin(r) * head_bytes_ - first),
                      count * bytes};
    }
    std::vector<const void*> from;
    std::vector<void*> to;
    for (std::int64_t page = 0; page < count; ++page) {
      from.push_back(on_rank(r, pages[at(page)]));
      to.push_back(there + page * (r > 0 ? bytes : page_bytes));
    }
    const std::vector<KvMove> moves = whole_pages(count, heads_.size(r));
    KvGatherArgs copy{.src = shape,
                      .dst = {.pages = to.data(),
                              .num_rows = count * kPageTokens,
                              .num_kv_heads = heads_.size(r),
                              .head_dim = shape.head_dim,
                              .dtype = shape.dtype,
                              .kv_stride = shape.kv_stride,
                              .head_stride = shape.head_stride,
                              .token_stride = shape.token_stride},
                      .moves = moves.data(),
                      .num_moves = count_of(moves),
                      .most_rows = kPageTokens};
    copy.src.pages = from.data();
    copy.src.num_rows = count * kPageTokens;
    copy.src.num_kv_heads = heads_.size(r);
    copy.src.table = nullptr;
    QUIRE_RETURN_IF_ERROR(team_->rank(r)->gather(copy));
  }
  if (first >= page_bytes) return {};
  QUIRE_RETURN_IF_ERROR(team_->gather(parts));
  return team_->rank(0)->run(cuda::JoinColumnsArgs{.parts = aside_[0]->pages.data(),
                                                   .dtype = DType::kF32,
                                                   .rows = count,
                                                   .n = page_bytes / kFloat,
                                                   .width = first / kFloat,
                                                   .first = first / kFloat,
                                                   .y = whole_.data(),
                                                   .ldy = page_bytes / kFloat});
}

Result<KvView> TeamPages::on_leader(const KvView& kv) {
  QUIRE_RETURN_IF_ERROR(check_layout(kv.head_stride, kv.num_kv_heads));
  const std::int64_t count = (kv.num_rows + kPageTokens - 1) / kPageTokens;
  QUIRE_RETURN_IF_ERROR(join(std::span(kv.pages, to_size(count)), kv));
  whole_pages_.clear();
  for (std::int64_t page = 0; page < count; ++page)
    whole_pages_.push_back(whole_.data() + page * heads_.heads * head_bytes_);
  KvView out = kv;
  out.pages = whole_pages_.data();
  out.table = nullptr;
  return out;
}

Status TeamPages::gather_out(const KvGatherArgs& a) {
  TouchedPages touched;
  std::vector<KvMove> moves(a.moves, a.moves + a.num_moves);
  for (KvMove& move : moves) move.from = touched.rename(move.from, move.rows);
  std::vector<const void*> pages, whole;
  for (const std::int32_t page : touched.pages) pages.push_back(a.src.pages[page]);
  QUIRE_RETURN_IF_ERROR(join(pages, a.src));
  for (std::int64_t page = 0; page < count_of(pages); ++page)
    whole.push_back(whole_.data() + page * heads_.heads * head_bytes_);
  KvGatherArgs out = a;
  out.src.pages = whole.data();
  out.src.num_rows = count_of(whole) * kPageTokens;
  out.moves = moves.data();
  return team_->rank(0)->gather(out);
}

Status TeamPages::gather_in(const KvGatherArgs& a) {
  TouchedPages touched;
  std::vector<KvMove> in(a.moves, a.moves + a.num_moves), on = in;
  for (std::size_t i = 0; i < in.size(); ++i)
    in[i].to = on[i].from = touched.rename(in[i].to, in[i].rows);
  const std::int64_t count = count_of(touched.pages), page_bytes = heads_.heads * head_bytes_;
  QUIRE_RETURN_IF_ERROR(whole_.reserve(count * page_bytes));
  std::vector<void*> whole;
  for (std::int64_t page = 0; page < count; ++page)
    whole.push_back(whole_.data() + page * page_bytes);
  KvGatherArgs first = a;
  first.dst.pages = whole.data();
  first.dst.num_rows = count * kPageTokens;
  first.moves = in.data();
  QUIRE_RETURN_IF_ERROR(team_->rank(0)->gather(first));

  std::vector<void*> copies = {nullptr};
  for (std::int64_t r = 1; r < team_->ranks(); ++r) {
    QUIRE_RETURN_IF_ERROR(aside_[at(r)]->pages.reserve(count * page_bytes));
    copies.push_back(aside_[at(r)]->pages.data());
  }
  QUIRE_RETURN_IF_ERROR(team_->broadcast(whole_.data(), copies, count * page_bytes));
  KvGatherArgs then = a;
  then.moves = on.data();
  then.src = {.pages = nullptr,
              .positions = nullptr,
              .num_rows = count * kPageTokens,
              .num_kv_heads = a.dst.num_kv_heads,
              .head_dim = a.dst.head_dim,
              .dtype = a.dst.dtype,
              .kv_stride = a.dst.kv_stride,
              .head_stride = a.dst.head_stride,
              .token_stride = a.dst.token_stride,
              .sorted = false};
  for (std::int64_t r = 0; r < team_->ranks(); ++r) {
    if (heads_.size(r) == 0) continue;
    const std::byte* const base = r == 0 ? whole_.data() : aside_[at(r)]->pages.data();
    std::vector<const void*> from;
    std::vector<void*> to(to_size((a.dst.num_rows + kPageTokens - 1) / kPageTokens));
    for (std::int64_t page = 0; page < count; ++page) {
      from.push_back(base + page * page_bytes + heads_.begin(r) * head_bytes_);
      to[at(touched.pages[at(page)])] = on_rank(r, a.dst.pages[touched.pages[at(page)]]);
    }
    const std::vector<KvMove> moves = moves_of(then, heads_.begin(r), heads_.end(r));
    KvGatherArgs part = then;
    part.src.pages = from.data();
    part.dst.pages = to.data();
    part.src.num_kv_heads = part.dst.num_kv_heads = heads_.size(r);
    part.moves = moves.data();
    part.num_moves = count_of(moves);
    QUIRE_RETURN_IF_ERROR(team_->rank(r)->gather(part));
  }
  return {};
}

}  // namespace quire
