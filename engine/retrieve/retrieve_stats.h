#pragma once

#include <cstdint>

namespace quire {

/// What a retriever did for one answer, over all layers.
struct RetrieveStats {
  std::int64_t sparse_steps = 0;             ///< layer steps that attended to a part of the rows only
  std::int64_t selections = 0;               ///< times a layer's pages were scored
  std::int64_t heads_corrected = 0, heads_kept = 0;  ///< KV heads chosen again before attention, and those that went by the query before
  std::int64_t pages_wanted = 0, pages_copied = 0;   ///< per KV head; the difference was on the device already
  std::int64_t bytes_copied = 0, bytes_appended = 0; ///< to the device: pages brought, and rows of new tokens
  std::int64_t waits = 0;                    ///< layer steps that had to wait for copies
  std::int64_t device_bytes = 0;             ///< held on the device
};

}  // namespace quire
