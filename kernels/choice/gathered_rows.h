/// This file declares GatheredRows, which gathers rows of one KV head into a cache of one head.
/// Pages that are listed whole stay in place, so the source cache must outlive the view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/rows/kv.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// Returns the bytes that gathering `num_rows` rows takes.
std::int64_t gathered_bytes(const KvView& kv, std::int64_t num_rows);

class GatheredRows {
 public:
  /// Copies the list's rows of `head`, except whole pages, into `memory`. The caller owns `memory`,
  /// which holds gathered_bytes(). The list must be valid.
  void gather(const KvView& kv, std::int32_t head, const RowList& list, RowOrder order,
              std::byte* memory);
  /// Returns the first `num_rows` gathered rows, valid until the next gather().
  KvView view(std::int64_t num_rows) const;

 private:
  std::vector<const void*> pages_;
  std::vector<std::int32_t> positions_;
  KvView all_{};
};

/// Checks that the lists are ordered as `order` says and lie within the cache. Errors:
/// kInvalidArgument, field `field`.
Status check_row_lists(const RowList* lists, const KvView& kv, const char* field,
                       RowOrder order = RowOrder::kAscending);

}  // namespace quire
