/// PrefixCache keeps the KV of earlier prompts for requests that begin with the same tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/index.h"
#include "cachestore/format/key.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"

namespace quire {

/// PrefixCache keeps pages (kPageTokens tokens in every layer) by reference. The cache that
/// computed them, the caches that took them over and this one hold the same memory. Pages are
/// whole, but the last one of a beginning that other prompts share to its end, such as the text
/// before documents. The key of a page is a chain of SHA-256 over `seed` and all token ids up to
/// its end; the ids are compared, too. The seed stands for everything else that changes KV: model,
/// tenant, salt. The least recently used pages are evicted first, and a page never before its
/// continuations. Threads: the engine thread.
class PrefixCache {
 public:
  /// Makes an empty cache. `pool` must outlive it. max_bytes 0: keeps nothing.
  PrefixCache(PagePool& pool, std::int32_t num_layers, std::int64_t max_bytes);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  /// Appends the longest known prefix of `tokens`, at most `max_tokens`, to the empty `cache` at
  /// positions 0, 1, ... . Returns the number of tokens: whole pages, or exactly `max_tokens`.
  std::int64_t take(const Digest& seed, std::span<const std::int32_t> tokens,
                    std::int64_t max_tokens, WorkingCache& cache);
  /// Selects what becomes of the last page of a beginning if it is not whole.
  enum class Ending : std::uint8_t { kDrop, kKeep };
  /// Keeps the first rows of `cache`, which must be these tokens computed causally from position 0
  /// on. It leaves out everything after a page whose rows are at other positions. `save`:
  /// next_unsaved() returns the whole pages.
  void add(const Digest& seed, std::span<const std::int32_t> tokens, WorkingCache& cache,
           bool save = false, Ending ending = Ending::kDrop);

  /// Makes next_unsaved() give out `slots` slots of a PromptFile.
  void save_to(std::int32_t slots) { slots_ = slots; }
  struct Unsaved {
    std::int32_t slot = 0;  ///< it belongs to the page until the page is evicted
    Digest key, parent;     ///< parent: key of the page before; zero for the first
    std::span<const std::int32_t> token_ids;
    std::span<void* const> pages;  ///< [num_layers]
  };
  /// Returns a page to be saved, in the order in which pages were added, and a free slot, or that
  /// of the page saved and not used for the longest time. Spans are valid until the cache changes.
  /// Empty: no page waits, or all slots belong to pages used more recently than those that wait.
  std::optional<Unsaved> next_unsaved();
  /// Adds a page read from `slot`, [num_layers][page_bytes], unless the cache is full or has no
  /// page `parent`. It counts as used less recently than all pages before. Returns whether it was
  /// added. Errors are those of a full pool, which returns false, too.
  bool restore(std::int32_t slot, const Digest& key, const Digest& parent,
               std::span<const std::int32_t> token_ids, std::span<const std::byte> rows);

  /// Returns the bytes of all pages kept, including those with other holders.
  std::int64_t bytes() const { return count_of(entries_) * column_bytes_; }
  std::int64_t max_bytes() const { return max_bytes_; }
  /// Evicts pages until at most `bytes` are kept.
  void shrink(std::int64_t bytes);

 private:
  struct Entry {
    Digest key;
    std::vector<std::int32_t> token_ids;  ///< of this page, 1 to kPageTokens
    std::vector<void*> pages;             ///< [num_layers]
    Digest parent;
    std::int32_t slot = kNoSlot;  ///< slot that holds it on disk, or soon will
    bool waits = false;           ///< it is in unsaved_
  };
  static constexpr std::int32_t kNoSlot = -1;
  using Entries = std::list<Entry>;
  void touch(std::span<const Entries::iterator> path);
  std::int32_t slot_for(Entries::iterator wanted);

  PagePool& pool_;
  const std::int64_t column_bytes_, max_bytes_;
  Entries entries_;  ///< most recently used first; a page precedes its continuations
  std::unordered_map<Digest, Entries::iterator, DigestHash> by_key_;
  std::deque<Digest> unsaved_;
  std::int32_t slots_ = 0, next_slot_ = 0;  ///< slots from next_slot_ on were never given out
  std::vector<std::int32_t> free_slots_;    ///< slots of evicted pages
};

}  // namespace quire
