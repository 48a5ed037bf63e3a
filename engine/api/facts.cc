#include "engine/api/facts.h"

namespace quire {

KvLayout kv_layout(const EngineFacts& facts, std::int64_t num_tokens) {
  return KvLayout(facts.shape, num_tokens, facts.names.block_tokens_for(num_tokens),
                  facts.names.layers_per_value());
}

}  // namespace quire
