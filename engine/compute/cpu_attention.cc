#include "engine/compute/cpu_attention.h"

#include "base/index.h"

namespace quire {

Status CpuAttention::attend_each(const AttentionArgs& args,
                                 std::span<const SequenceAttention> sequences, DType) {
  for (std::int64_t i = 0; i < args.rows; ++i) {
    const SequenceAttention& s = sequences[at(i)];
    AttentionArgs one = args;
    one.q = args.q + i * args.ldq;
    one.out = args.out + i * args.ldo;
    one.query_positions = &s.position;
    one.rows = 1;
    one.kv = s.kv;
    one.lse = args.lse != nullptr ? args.lse + i * args.num_heads : nullptr;
    const RowList* lists = s.lists_in_memory != nullptr ? s.lists_in_memory : s.lists;
    QUIRE_RETURN_IF_ERROR(lists != nullptr ? attention_rows({one, lists, s.order})
                                           : quire::attention(one));
  }
  return {};
}

}  // namespace quire
