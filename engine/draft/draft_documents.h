/// This file stores a draft's own KV of documents. It is computed at ingest, stored under its own
/// keys, and placed when the draft reads a prompt with these documents.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "cachestore/store.h"
#include "engine/api/speed_meter.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/working_cache.h"
#include "engine/model/model.h"
#include "engine/prefill/pass_resources.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

/// Stores segments without sketches, in a key space that no target's KV shares. They count towards
/// the store's budgets, are evicted like any other, and are pinned by documents as companions. They
/// are placed as stored and rotated to the document's position, so their rows have not attended to
/// earlier documents (`reuse`). Threads: one at a time, the one that runs `model`.
class DraftDocuments {
 public:
  struct Owner {
    std::string tenant;
    std::array<std::uint8_t, 32> salt_digest{};
  };

  /// All arguments must outlive it.
  DraftDocuments(Store& store, Model& model, const Tokenizer& tokenizer, PagePool& pool,
                 std::int32_t chunk_tokens);

  std::int64_t bytes_per_token() const;
  /// Computes KV of a context alone, or finds it, and stores it; token_ids are the draft's, at
  /// least one. `between` is called between chunks, and its error ends the work. The segment stays
  /// while the handle lives and while a document names its key. Errors: those of `between`, of a
  /// pass and of the store.
  Result<SegmentHandle> keep(std::span<const std::int32_t> token_ids, const Owner& owner,
                             const std::function<Status()>& between);
  /// Appends the context's rows in `kept` (ascending, separate ranges of token_ids) at `positions`,
  /// one each. It reads only their blocks and waits for the disk; returns false, with the cache
  /// unchanged, if some are missing or damaged.
  bool place(std::span<const std::int32_t> token_ids, std::span<const RowRange> kept,
             const Owner& owner, std::span<const std::int32_t> positions, WorkingCache& cache);

 private:
  Result<SegmentHandle> write(const ContextKey& key, std::span<const std::int32_t> token_ids,
                              const std::string& tenant, const std::function<Status()>& between);

  Store& store_;
  const RopeTable& rope_;
  SpeedMeter meter_;
  PassResources core_;
  std::string fingerprint_text_;  ///< stored with each segment
};

}  // namespace quire
