/// Attention that reads listed rows where they lie, where this CPU has a way to.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention.h"

namespace quire {

/// Whether attention_listed() serves a call of this shape: few query rows over bf16 KV, on CPUs
/// with AVX512-BF16.
bool reads_listed_rows(const AttentionArgs& args);

/// Rows of one KV head of a cache.
struct ListedRows {
  const std::int32_t* rows = nullptr;
  std::int32_t kv_head = 0;
};

/// attention() to one KV head, where row i of the cache is row listed.rows[i] of the pages:
/// kv.num_kv_heads is 1, kv.num_rows the length of the list, and kv.positions [num_rows] are those
/// of the listed rows. The bits are those of attention() over the same rows brought together. The
/// list is not checked.
Status attention_listed(const AttentionArgs& args, const ListedRows& listed);

}  // namespace quire
