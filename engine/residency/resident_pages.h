/// The pages of one layer that are on the device, KV head by KV head.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "engine/residency/retrieval_pages.h"
#include "kernels/kv_gather.h"

namespace quire {

/// A page of the host's cache to be copied to a slot of one KV head.
struct PageCopy {
  std::int32_t head = 0, page = 0, slot = 0;
};

/// Slots of page_tokens rows for each KV head; which page a slot holds differs from head to head. A
/// slot's memory is [page_tokens / kPageTokens][2 (K, V)][kPageTokens][head_dim], so that a head's
/// slots are a KvView as they are, and a head's part of a page of the working cache
/// ([num_kv_heads][2][kPageTokens][head_dim]) is copied as it lies. Rows of a short page, and
/// of slots without a page, stand at a position that no query reaches.
/// Threads: the engine thread; what is copied to slots may be copied on another one.
class ResidentPages {
 public:
  /// page_tokens is a multiple of kPageTokens. Errors: kResourceExhausted.
  static Result<ResidentPages> create(DevicePool& pool, std::int32_t num_kv_heads,
                                      std::int32_t head_dim, DType dtype, std::int32_t page_tokens,
                                      std::int32_t num_slots);

  /// What create() takes of the pool.
  static std::int64_t bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                std::int32_t page_tokens, std::int32_t num_slots);

  /// Makes room for `wanted` (distinct, num_slots at most) of a head: pages that have a slot keep
  /// it, others take slots of pages that are not wanted, lowest first. From here on those slots
  /// count as holding them: `copies` gets what must be copied before they are attended to.
  void want(std::int32_t head, std::span<const std::int32_t> wanted, const RetrievalPages& pages,
            std::span<const std::int32_t> positions, std::vector<PageCopy>& copies);
  /// What copying that page means, for kv_gather() to slots().
  KvMove move(const PageCopy& what, const KvStretch& rows) const;
  /// The page at the end has one more row, at `position`: its slots take it, too. `moves` gets what
  /// must be copied.
  void append(const RetrievalPages& pages, std::int32_t page, std::int32_t position,
              std::vector<KvMove>& moves);

  /// What copying a page of these rows moves.
  std::int64_t copy_bytes(const KvStretch& rows) const;
  bool resident(std::int32_t head, std::int32_t page) const { return slot_of(head, page) >= 0; }
  /// All slots as a cache: row slot * page_tokens + i is the i-th of the slot's page, in each KV
  /// head another one.
  MutableKvView slots() const;
  /// The same to attend to with lists of rows, which alone say what is there: all rows stand at
  /// position 0.
  KvView listed() const;
  /// Rows of slots() that one head has, pages ascending.
  void append_rows(std::int32_t head, std::vector<std::int32_t>& rows) const;
  /// What is resident of one head, as a cache of one KV head: pages ascend, whatever slots they are
  /// in, so that attention to the same pages gives the same bits. Valid until the head's pages
  /// change.
  KvView view(std::int32_t head) const;
  std::int64_t bytes() const { return memory_.size(); }

 private:
  static constexpr std::int32_t kNowhere = std::numeric_limits<std::int32_t>::max();
  struct Head {
    std::vector<std::int32_t> page_of;    ///< [num_slots], -1: none
    std::vector<std::int32_t> slot_of;    ///< by page, -1 or past the end: none
    std::vector<std::int32_t> positions;  ///< [num_slots * page_tokens]
    std::vector<const void*> pages;       ///< [num_slots * page_tokens / kPageTokens]
    // What view() shows; made when it is asked for after a change.
    mutable std::vector<const void*> ordered_pages;       ///< of slots in use, by page
    mutable std::vector<std::int32_t> ordered_positions;  ///< the same
    mutable bool ordered = false;
  };
  std::int32_t slot_of(std::int32_t head, std::int32_t page) const;
  std::vector<std::pair<std::int32_t, std::int64_t>> in_use(const Head& head) const;
  void order(const Head& head) const;
  void set_positions(Head& head, std::int32_t slot, const KvStretch& rows,
                     std::span<const std::int32_t> positions) const;

  PoolMemory memory_;
  std::vector<void*> parts_;  ///< [num_slots * page_tokens / kPageTokens], of the first head
  std::vector<std::int32_t> no_positions_;  ///< [num_slots * page_tokens]
  std::vector<Head> heads_;
  std::int32_t head_dim_ = 0, page_tokens_ = 0, num_slots_ = 0;
  DType dtype_ = DType::kF16;
};

}  // namespace quire
