/// This file declares attention that reads listed rows in place, on CPUs that support it.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention/attention.h"

namespace quire {

/// Returns whether attention_listed() supports a call of this shape: few query rows over bf16 KV,
/// on CPUs with AVX512-BF16.
bool reads_listed_rows(const AttentionArgs& args);

/// Lists the rows of one KV head of a cache.
struct ListedRows {
  const std::int32_t* rows = nullptr;
  std::int32_t kv_head = 0;
};

/// Computes attention() over one KV head, where row i of the cache is row listed.rows[i] of the
/// pages. kv.num_kv_heads is 1, kv.num_rows is the length of the list, and kv.positions [num_rows]
/// holds the positions of the listed rows. The bits are those of attention() over the same rows
/// gathered. The list is not checked.
Status attention_listed(const AttentionArgs& args, const ListedRows& listed);

}  // namespace quire
