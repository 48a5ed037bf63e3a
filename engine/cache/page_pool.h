/// Fixed-size pages of KV for working caches, with exact accounting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/cache/compute_memory.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"

namespace quire {

/// What one page of one layer looks like: [num_kv_heads][2 (K, V)][kPageTokens][head_dim] of `dtype`, 64-byte aligned.
/// Heads are outermost so that attention over one KV head reads memory in order.
struct PageFormat {
  std::int32_t num_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
  std::int64_t page_bytes() const {
    return std::int64_t{2} * num_kv_heads * kPageTokens * head_dim * static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

/// Allocates pages out of slabs, never more than max_bytes. Freed pages are reused first. A page may have several holders, each of which
/// releases it once; who wants to write to a page that others hold takes a copy.
/// Threads: every method may be called concurrently. The pool must outlive its pages.
class PagePool {
 public:
  /// max_bytes 0: no limit. `memory`: what pages are made of; null: ordinary memory.
  PagePool(PageFormat format, std::int64_t max_bytes, std::shared_ptr<ComputeMemory> memory = nullptr);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const PageFormat& format() const { return format_; }
  /// Before the host reads or writes pages. Threads: the one that computes. Errors: those of ComputeMemory::settle.
  Status settle() const { return quire::settle(memory_.get()); }
  /// Uninitialised memory. Errors: kResourceExhausted (budget or system memory; nothing changes).
  Result<void*> allocate();
  /// One more holder of a page in use.
  void share(void* page);
  /// Whether others hold it, too.
  bool shared(const void* page) const;
  /// By one holder; free once the last did.
  void release(void* page);
  /// Each page counts once, however many hold it.
  std::int64_t bytes_in_use() const;
  std::int64_t peak_bytes() const;
  std::int64_t max_bytes() const { return max_bytes_; }

 private:
  struct Slab;
  const PageFormat format_;
  const std::int64_t max_bytes_;
  const std::shared_ptr<ComputeMemory> memory_;
  mutable std::mutex mu_;
  std::vector<std::unique_ptr<Slab>> slabs_;  // guarded by mu_
  std::vector<void*> free_;                   // guarded by mu_
  std::unordered_map<const void*, std::int32_t> other_holders_;  ///< of pages with more than one; guarded by mu_
  std::int64_t pages_in_use_ = 0, peak_pages_ = 0, pages_owned_ = 0;  // guarded by mu_
};

}  // namespace quire
