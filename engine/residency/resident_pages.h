/// ResidentPages holds the pages of one layer that are on the device, KV head by KV head.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/residency/device_pool.h"
#include "engine/residency/retrieval_pages.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// PageCopy describes the copy of a page of the host's cache to a slot of one KV head.
struct PageCopy {
  std::int32_t head = 0, page = 0, slot = 0;
};

/// ResidentPages has slots of page_tokens rows for each KV head; which page a slot holds differs
/// from head to head. A slot's memory is [page_tokens / kPageTokens][2 (K,
/// V)][kPageTokens][head_dim]. A head's slots are therefore a KvView, and a head's part of a page
/// of the working cache ([num_kv_heads][2][kPageTokens][head_dim]) is copied contiguously. Rows of
/// a short page, and of slots without a page, have a position that no query reaches. Threads: the
/// engine thread; copies to slots may run on another thread.
class ResidentPages {
 public:
  /// Allocates the slots; page_tokens is a multiple of kPageTokens. Errors: kResourceExhausted.
  static Result<ResidentPages> create(DevicePool& pool, std::int32_t num_kv_heads,
                                      std::int32_t head_dim, DType dtype, std::int32_t page_tokens,
                                      std::int32_t num_slots);

  /// Returns the bytes that create() takes of the pool.
  static std::int64_t bytes_for(std::int32_t num_kv_heads, std::int32_t head_dim, DType dtype,
                                std::int32_t page_tokens, std::int32_t num_slots);

  /// Assigns slots to the `wanted` pages (distinct, at most num_slots) of a head: pages with a slot
  /// keep it, others take slots of unwanted pages, lowest first. Those slots count as holding them
  /// from now on; `copies` receives what must be copied before they are attended to.
  void want(std::int32_t head, std::span<const std::int32_t> wanted, const RetrievalPages& pages,
            std::span<const std::int32_t> positions, std::vector<PageCopy>& copies);
  /// Returns the move of that copy, for kv_gather() to slots().
  KvMove move(const PageCopy& what, const RowRange& rows) const;
  /// Adds the row at `position`, the newest of the last page, to the slots of that page. `moves`
  /// receives what must be copied.
  void append(const RetrievalPages& pages, std::int32_t page, std::int32_t position,
              std::vector<KvMove>& moves);

  /// Returns the bytes that copying a page of these rows moves.
  std::int64_t copy_bytes(const RowRange& rows) const;
  bool resident(std::int32_t head, std::int32_t page) const { return slot_of(head, page) >= 0; }
  /// Returns the page that a head has in the slot, or -1, and how many of its rows are there.
  std::int32_t page_in(std::int32_t head, std::int32_t slot) const {
    return heads_[at(head)].page_of[at(slot)];
  }
  std::int32_t rows_in(std::int32_t head, std::int32_t slot) const;
  /// Returns all slots as a cache: row slot * page_tokens + i is the i-th row of the slot's page,
  /// which differs between KV heads.
  MutableKvView slots() const;
  /// Returns the slots for attention with lists of rows, which alone select rows: every row has
  /// position 0.
  KvView listed() const;
  /// Appends the rows of slots() that one head holds, in ascending order of pages.
  void append_rows(std::int32_t head, std::vector<std::int32_t>& rows) const;
  /// Returns a head's resident rows as a cache of one KV head, valid until the head's pages change.
  /// Pages ascend, whatever their slots, so that attention to the same pages gives the same bits.
  KvView view(std::int32_t head) const;
  std::int64_t bytes() const { return memory_.size(); }

 private:
  static constexpr std::int32_t kNowhere = std::numeric_limits<std::int32_t>::max();
  struct Head {
    std::vector<std::int32_t> page_of;    ///< [num_slots], -1: no page
    std::vector<std::int32_t> slot_of;    ///< by page; -1 or past the end: no slot
    std::vector<std::int32_t> positions;  ///< [num_slots * page_tokens]
    std::vector<const void*> pages;       ///< [num_slots * page_tokens / kPageTokens]
    // The arrays behind view(), built on the first call after a change.
    mutable std::vector<const void*> ordered_pages;       ///< of slots in use, ordered by page
    mutable std::vector<std::int32_t> ordered_positions;  ///< in the same order
    mutable bool ordered = false;
  };
  std::int32_t slot_of(std::int32_t head, std::int32_t page) const;
  std::vector<std::pair<std::int32_t, std::int64_t>> in_use(const Head& head) const;
  void order(const Head& head) const;
  void set_positions(Head& head, std::int32_t slot, const RowRange& rows,
                     std::span<const std::int32_t> positions) const;

  PoolMemory memory_;
  std::vector<void*> parts_;  ///< [num_slots * page_tokens / kPageTokens], of the first head
  std::vector<std::int32_t> no_positions_;  ///< [num_slots * page_tokens]
  std::vector<Head> heads_;
  std::int32_t head_dim_ = 0, page_tokens_ = 0, num_slots_ = 0;
  DType dtype_ = DType::kF16;
};

}  // namespace quire
