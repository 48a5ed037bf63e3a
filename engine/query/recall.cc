#include "engine/query/recall.h"

#include <utility>

namespace quire {
namespace {

/// The worth of a context while nobody knows how fast this machine computes.
constexpr double kUnknownWorthMs = 200;

}  // namespace

RecallRequest recall_request(const EngineFacts& facts, const Speeds& speeds, const ContextKey& key,
                             std::int64_t num_tokens, std::int64_t left_tokens,
                             std::string tenant) {
  const KvLayout layout = kv_layout(facts, num_tokens);
  RecallRequest request;
  request.key = key;
  request.layout = layout.segment();
  request.value_bytes = static_cast<std::uint64_t>(layout.total_bytes());
  request.tenant = std::move(tenant);
  request.fingerprint = facts.names.fingerprint_text();
  request.worth_ms = speeds.prefill_tokens_per_ms > 0
                         ? static_cast<double>(num_tokens + left_tokens) /
                               speeds.prefill_tokens_per_ms
                         : kUnknownWorthMs;
  return request;
}

}  // namespace quire
