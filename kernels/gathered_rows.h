/// Rows of one KV head brought together, as a cache of one head. Pages of the cache that are listed
/// whole stay where they are, so that cache must live as long as the view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention_rows.h"
#include "kernels/kv.h"

namespace quire {

/// Bytes that gathering so many rows takes.
std::int64_t gathered_bytes(const KvView& kv, std::int64_t num_rows);

class GatheredRows {
 public:
  /// Copies the list's rows of `head`, but for whole pages, into `memory`, which holds
  /// gathered_bytes() and stays the caller's. The list is valid.
  void gather(const KvView& kv, std::int32_t head, const RowList& list, RowOrder order,
              std::byte* memory);
  /// The first `num_rows` of them; until the next gather().
  KvView view(std::int64_t num_rows) const;

 private:
  std::vector<const void*> pages_;
  std::vector<std::int32_t> positions_;
  KvView all_{};
};

/// The lists are as `order` says and lie within the cache. Errors: kInvalidArgument, field `field`.
Status check_row_lists(const RowList* lists, const KvView& kv, const char* field,
                       RowOrder order = RowOrder::kAscending);

}  // namespace quire
