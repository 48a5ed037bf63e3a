#include "engine/cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

std::vector<std::int32_t> page_positions(std::int64_t page, std::size_t rows) {
  std::vector<std::int32_t> out(rows);
  std::iota(out.begin(), out.end(), static_cast<std::int32_t>(page * kPageTokens));
  return out;
}

/// Returns whether the page's first rows have its positions in every layer.
bool holds_page(const WorkingCache& cache, std::int64_t page, std::size_t rows) {
  const std::vector<std::int32_t> wanted = page_positions(page, rows);
  const auto first = to_size(page * kPageTokens);
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    const auto held = cache.positions(layer);
    if (held.size() < first + rows ||
        !std::equal(wanted.begin(), wanted.end(),
                    held.begin() + static_cast<std::ptrdiff_t>(first)))
      return false;
  }
  return true;
}

}  // namespace

PrefixCache::PrefixCache(PagePool& pool, std::int32_t num_layers, std::int64_t max_bytes)
    : pool_(pool), column_bytes_(pool.format().page_bytes() * num_layers), max_bytes_(max_bytes) {}

PrefixCache::~PrefixCache() { shrink(0); }

/// Moves a path to the front, the last page first, because a page precedes its continuations.
void PrefixCache::touch(std::span<const Entries::iterator> path) {
  for (auto it = path.rbegin(); it != path.rend(); ++it)
    entries_.splice(entries_.begin(), entries_, *it);
}

std::int64_t PrefixCache::take(const Digest& seed, std::span<const std::int32_t> tokens,
                               std::int64_t max_tokens, WorkingCache& cache) {
  BlockKeyChain chain(seed);
  std::vector<Entries::iterator> path;
  const auto most = to_size(std::clamp<std::int64_t>(max_tokens, 0, count_of(tokens)));
  std::size_t taken = 0;
  while (taken < most) {
    const auto ids = tokens.subspan(taken, std::min<std::size_t>(kPageTokens, most - taken));
    const auto found = by_key_.find(chain.append(ids));
    if (found == by_key_.end() || !std::ranges::equal(ids, found->second->token_ids)) break;
    cache.append_shared(found->second->pages, page_positions(count_of(path), ids.size()));
    path.push_back(found->second);
    taken += ids.size();
  }
  touch(path);
  return static_cast<std::int64_t>(taken);
}

void PrefixCache::add(const Digest& seed, std::span<const std::int32_t> tokens, WorkingCache& cache,
                      bool save, Ending ending) {
  BlockKeyChain chain(seed);
  Digest parent;
  std::vector<Entries::iterator> path;
  const auto most = to_size(max_bytes_ / column_bytes_);
  for (std::size_t at = 0; at < tokens.size() && path.size() < most; at += kPageTokens) {
    const auto ids = tokens.subspan(at, std::min<std::size_t>(kPageTokens, tokens.size() - at));
    const bool whole = ids.size() == kPageTokens;
    if (!whole && ending == Ending::kDrop) break;
    const auto page = count_of(path);
    const Digest key = chain.append(ids);
    auto found = by_key_.find(key);
    if (found == by_key_.end()) {
      if (!cache.shareable() || !holds_page(cache, page, ids.size())) break;
      TakenPages taken(pool_);
      taken.pages = cache.share_page(page);
      entries_.push_front({key, {ids.begin(), ids.end()}, {}, parent});
      entries_.front().pages.swap(taken.pages);
      found = by_key_.emplace(key, entries_.begin()).first;
    }
    Entry& entry = *found->second;
    if (save && whole && slots_ > 0 && entry.slot == kNoSlot && !entry.waits) {
      entry.waits = true;
      unsaved_.push_back(key);
    }
    path.push_back(found->second);
    parent = key;
  }
  touch(path);
  shrink(max_bytes_);
}

std::optional<PrefixCache::Unsaved> PrefixCache::next_unsaved() {
  while (!unsaved_.empty()) {
    const auto found = by_key_.find(unsaved_.front());
    unsaved_.pop_front();
    if (found == by_key_.end()) continue;  // evicted meanwhile
    Entry& entry = *found->second;
    entry.waits = false;
    entry.slot = slot_for(found->second);
    if (entry.slot != kNoSlot)
      return Unsaved{entry.slot, entry.key, entry.parent, entry.token_ids, entry.pages};
  }
  return std::nullopt;
}

/// Pages before `wanted` in its prompt stand before it in the list, so their slots are not taken.
std::int32_t PrefixCache::slot_for(Entries::iterator wanted) {
  if (!free_slots_.empty()) {
    const std::int32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }
  if (next_slot_ < slots_) return next_slot_++;
  for (auto it = std::prev(entries_.end()); it != wanted; --it) {
    if (it->slot != kNoSlot) return std::exchange(it->slot, kNoSlot);
  }
  return kNoSlot;
}

bool PrefixCache::restore(std::int32_t slot, const Digest& key, const Digest& parent,
                          std::span<const std::int32_t> token_ids,
                          std::span<const std::byte> rows) {
  const auto page_bytes = to_size(pool_.format().page_bytes());
  if (bytes() + column_bytes_ > max_bytes_ || by_key_.contains(key) ||
      (!parent.is_zero() && !by_key_.contains(parent)))
    return false;
  TakenPages taken(pool_);
  taken.pages.reserve(rows.size() / page_bytes);
  for (std::size_t at = 0; at + page_bytes <= rows.size(); at += page_bytes) {
    const Result<void*> page = pool_.allocate();
    if (!page.ok()) return false;
    taken.pages.push_back(*page);
  }
  if (!pool_.write_pages(rows.data(), taken.pages).ok()) return false;
  entries_.push_back({key, {token_ids.begin(), token_ids.end()}, {}, parent, slot});
  entries_.back().pages.swap(taken.pages);
  by_key_.emplace(key, std::prev(entries_.end()));
  for (; next_slot_ < slot; ++next_slot_) free_slots_.push_back(next_slot_);
  if (next_slot_ == slot) {
    ++next_slot_;
  } else {
    std::erase(free_slots_, slot);
  }
  return true;
}

void PrefixCache::shrink(std::int64_t bytes) {
  while (!entries_.empty() && this->bytes() > bytes) {
    for (void* page : entries_.back().pages) pool_.release(page);
    if (entries_.back().slot != kNoSlot) free_slots_.push_back(entries_.back().slot);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
}

}  // namespace quire
