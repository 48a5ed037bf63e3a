/// A draft's own KV of documents: computed at ingest, kept in the store under keys of its own,
/// placed when the draft reads a prompt they stand in.
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
#include "kernels/attention_mass.h"

namespace quire {

/// Segments without sketches, in a key space that no target's KV shares. They count in the store's
/// budgets and are evicted like any other; documents hold them as companions. Placed as they are,
/// rotated to where the document stands: rows of documents behind others have not seen those
/// (`reuse`). Threads: one at a time, the one that runs `model`.
class DraftDocuments {
 public:
  struct Owner {
    std::string tenant;
    std::array<std::uint8_t, 32> salt_digest{};
  };

  /// What is given must outlive it.
  DraftDocuments(Store& store, Model& model, const Tokenizer& tokenizer, PagePool& pool,
                 std::int32_t chunk_tokens);

  std::int64_t bytes_per_token() const;
  /// Computes KV of a context alone, or finds it, and keeps it. `between` is called between chunks;
  /// its error ends the work. token_ids: the draft's, at least one. The segment stays while the
  /// handle lives and a document names its key. Errors: those of `between`, of a pass and of the
  /// store.
  Result<SegmentHandle> keep(std::span<const std::int32_t> token_ids, const Owner& owner,
                             const std::function<Status()>& between);
  /// Appends the context's rows in `kept` (of token_ids, ascending and apart) at these positions,
  /// one each. Reads the blocks that they lie in alone. False: some of it is missing or damaged,
  /// and the cache is as it was. Waits for the disk.
  bool place(std::span<const std::int32_t> token_ids, std::span<const KvStretch> kept,
             const Owner& owner, std::span<const std::int32_t> positions, WorkingCache& cache);

 private:
  Result<SegmentHandle> write(const ContextKey& key, std::span<const std::int32_t> token_ids,
                              const std::string& tenant, const std::function<Status()>& between);

  Store& store_;
  const RopeTable& rope_;
  SpeedMeter meter_;
  PassResources core_;
  std::string fingerprint_text_;  ///< recorded with each segment
};

}  // namespace quire
